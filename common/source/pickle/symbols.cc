#include "common/source/pickle/symbols.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace ckptd::pickle {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;

// Where Python 3 has the modules of Python 2 (the module _compat_pickle has the whole list).
constexpr auto kModules = std::to_array<Pair>({
    {"Queue", "queue"},
    {"StringIO", "io"},
    {"UserDict", "collections"},
    {"UserList", "collections"},
    {"UserString", "collections"},
    {"__builtin__", "builtins"},
    {"_abcoll", "collections.abc"},
    {"cPickle", "pickle"},
    {"cStringIO", "io"},
    {"commands", "subprocess"},
    {"copy_reg", "copyreg"},
    {"exceptions", "builtins"},
    {"repr", "reprlib"},
    {"thread", "_thread"},
    {"urllib2", "urllib.request"},
});
constexpr auto kNames = std::to_array<Pair>({
    {"UserDict.IterableUserDict", "collections.UserDict"},
    {"__builtin__.basestring", "builtins.str"},
    {"__builtin__.intern", "sys.intern"},
    {"__builtin__.long", "builtins.int"},
    {"__builtin__.reduce", "functools.reduce"},
    {"__builtin__.unichr", "builtins.chr"},
    {"__builtin__.unicode", "builtins.str"},
    {"__builtin__.xrange", "builtins.range"},
    {"exceptions.StandardError", "builtins.Exception"},
    {"itertools.ifilter", "builtins.filter"},
    {"itertools.imap", "builtins.map"},
    {"itertools.izip", "builtins.zip"},
});

using Known = std::pair<std::string_view, Meaning>;
constexpr auto kKnown = std::to_array<Known>({
    {"collections.OrderedDict", Meaning::kOrderedDict},
    {"builtins.set", Meaning::kSet},
    {"builtins.frozenset", Meaning::kSet},
    {"builtins.bytearray", Meaning::kBytes},
    {"builtins.bytes", Meaning::kBytes},
    {"builtins.complex", Meaning::kComplex},
    {"_codecs.encode", Meaning::kEncode},
    {"torch.Size", Meaning::kSize},
    {"numpy.core.multiarray.scalar", Meaning::kNumpyScalar},
    {"numpy._core.multiarray.scalar", Meaning::kNumpyScalar},
    {"builtins.getattr", Meaning::kGetattr},
    {"copyreg._reconstructor", Meaning::kReconstructor},
    {"copyreg.__newobj__", Meaning::kNewObj},
    {"copyreg.__newobj_ex__", Meaning::kNewObjEx},
    {"atexit.register", Meaning::kCallsArguments},
    {"builtins.filter", Meaning::kCallsArguments},
    {"builtins.map", Meaning::kCallsArguments},
    {"functools.reduce", Meaning::kCallsArguments},
    {"itertools.starmap", Meaning::kCallsArguments},
    {"operator.call", Meaning::kCallsArguments},
    {"threading.Thread", Meaning::kCallsArguments},
    {"threading.Timer", Meaning::kCallsArguments},
    {"weakref.finalize", Meaning::kCallsArguments},
});

// No checkpoint calls anything of these.
constexpr auto kExecutingModules = std::to_array<std::string_view>({
    "_pickle", "bdb",    "cProfile",   "codeop", "commands", "ctypes",     "importlib", "marshal",
    "nt",      "os",     "pdb",        "pickle", "pkgutil",  "posix",      "pty",       "runpy",
    "shutil",  "socket", "subprocess", "sys",    "timeit",   "webbrowser", "zipimport",
});
constexpr auto kExecutingFunctions = std::to_array<std::string_view>({
    "_io.FileIO",
    "_io.open",
    "_thread.start_new_thread",
    "builtins.__import__",
    "builtins.apply",
    "builtins.breakpoint",
    "builtins.compile",
    "builtins.delattr",
    "builtins.eval",
    "builtins.exec",
    "builtins.execfile",
    "builtins.exit",
    "builtins.input",
    "builtins.open",
    "builtins.quit",
    "builtins.setattr",
    "cloudpickle.load",
    "cloudpickle.loads",
    "code.InteractiveConsole",
    "code.InteractiveInterpreter",
    "code.interact",
    "codecs.open",
    "dill.load",
    "dill.loads",
    "io.FileIO",
    "io.open",
    "io.open_code",
    "joblib.load",
    "numpy.load",
    "numpy.testing._private.utils.runstring",
    "pandas.read_pickle",
    "pip.main",
    "platform.popen",
    "profile.run",
    "torch.hub.load",
    "torch.jit.load",
    "torch.load",
    "torch.ops.load_library",
    "torch.serialization.load",
    "torch.utils.cpp_extension.load",
    "torch.utils.cpp_extension.load_inline",
    "urllib.request.urlopen",
    "urllib.request.urlretrieve",
});
// Modules that many others import, so that they can be reached as a name of those.
constexpr auto kReachable = std::to_array<std::string_view>({
    "builtins",
    "ctypes",
    "importlib",
    "nt",
    "os",
    "pickle",
    "posix",
    "runpy",
    "shutil",
    "subprocess",
    "sys",
});

bool IsOneOf(std::string_view name, std::span<const std::string_view> all) {
  return std::find(all.begin(), all.end(), name) != all.end();
}

std::string_view Replaced(std::string_view name, std::span<const Pair> pairs) {
  const auto found = std::find_if(pairs.begin(), pairs.end(),
                                  [name](const Pair& pair) { return pair.first == name; });
  return found == pairs.end() ? std::string_view() : found->second;
}

std::string_view LastPart(std::string_view name) { return name.substr(name.rfind('.') + 1); }

// "a.os", and functions of it: "a.os.system". Classes of somebody's own module "os" are no danger,
// but for Popen.
bool EndsInReachable(std::string_view symbol) {
  const std::string_view last = LastPart(symbol);
  if (IsOneOf(last, kReachable)) return true;
  if (last.size() == symbol.size()) return false;
  const bool is_class = !last.empty() && last[0] >= 'A' && last[0] <= 'Z' && last != "Popen";
  return !is_class &&
         IsOneOf(LastPart(symbol.substr(0, symbol.size() - last.size() - 1)), kReachable);
}

bool Executes(std::string_view symbol) {
  return IsOneOf(symbol.substr(0, symbol.find('.')), kExecutingModules) ||
         IsOneOf(symbol, kExecutingFunctions) ||
         (!symbol.starts_with("builtins.") && EndsInReachable(symbol));
}

}  // namespace

std::string SymbolName(std::string_view module, std::string_view name, int protocol) {
  std::string written = std::string(module) + "." + std::string(name);
  if (protocol >= 3) return written;
  if (const std::string_view now = Replaced(written, kNames); !now.empty()) return std::string(now);
  const std::string_view now = Replaced(module, kModules);
  return now.empty() ? written : std::string(now) + "." + std::string(name);
}

Meaning MeaningOf(std::string_view symbol) {
  const auto known = std::find_if(kKnown.begin(), kKnown.end(),
                                  [symbol](const Known& one) { return one.first == symbol; });
  if (known != kKnown.end()) return known->second;
  return Executes(symbol) ? Meaning::kExecutes : Meaning::kUnknown;
}

}  // namespace ckptd::pickle
