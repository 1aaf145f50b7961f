// Calls that pickles would make: values of pure constructors, inert records, and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/common/source/pickle/show.h"

namespace ckptd::pickle {
namespace {

using std::string_view_literals::operator""sv;

// "c..." of a name.
std::string Global(std::string_view module, std::string_view name) {
  return fmt::format("c{}\n{}\n", module, name);
}

// A call of it, with what is pushed as arguments.
std::string CallOf(std::string_view module, std::string_view name,
                   std::string_view arguments = "") {
  return Global(module, name) + "(" + std::string(arguments) + "tR";
}

std::string ShowCall(std::string_view module, std::string_view name, std::string_view arguments) {
  return ShowPickle(CallOf(module, name, arguments) + ".");
}

void ExpectRefused(const std::string& pickle, const std::string& calls) {
  const auto parsed = ParseBytes(pickle);
  EXPECT_THAT(parsed, FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceUnsafe))
      << pickle;
  EXPECT_THAT(parsed, Says("would run " + calls + ",")) << pickle;
  EXPECT_EQ(FactsOf(parsed.status())["calls"], calls);
}

TEST(PickleCalls, OfUnknownClassesAreRecords) {
  EXPECT_EQ(ShowPickle("ca.b\nC\n."), "<a.b.C>");
  EXPECT_EQ(ShowPickle("\x8c\x01"
                       "a\x8c\x03"
                       "B.C\x93."),
            "<a.B.C>");
  EXPECT_EQ(ShowCall("a", "C", "K\x01K\x02"), "a.C(1, 2)");
  EXPECT_EQ(ShowPickle("ca\nC\nK\x01\x85\x81."), "a.C(1)");
  EXPECT_EQ(ShowPickle("ca\nC\nK\x01\x85}K\x02K\x03s\x92."), "a.C(1, **{2: 3})");
  EXPECT_EQ(ShowPickle("(K\x01ia\nC\n."), "a.C(1)");
  EXPECT_EQ(ShowPickle("(ca\nC\nK\x01o."), "a.C(1)");
  // The callee is what another call gave, or an object outside of the pickle.
  EXPECT_EQ(ShowPickle("ca\nf\n)RK\x01\x85R."), "a.f()(1)");
  EXPECT_EQ(ShowPickle("K\x07Q)R."), "@7()");
}

TEST(PickleCalls, RecordsKeepWhatIsPutIntoThem) {
  const std::string object = CallOf("a", "C");
  EXPECT_EQ(ShowPickle(object + "K\x01"
                                "a(K\x02K\x03"
                                "e."),
            "a.C()[1, 2, 3]");
  EXPECT_EQ(ShowPickle(object + "(K\x01\x90."), "a.C()[1]");
  EXPECT_EQ(ShowPickle(object + "K\x01K\x02s(K\x03K\x04u."), "a.C(){1: 2, 3: 4}");
  EXPECT_EQ(ShowPickle(object + "K\x02"
                                "b."),
            "a.C().2");
  EXPECT_EQ(ShowPickle(object + "}K\x01K\x02sb."), "a.C().{1: 2}");
  EXPECT_EQ(ShowPickle("}K\x01"
                       "b."),
            "{}.1");
  EXPECT_EQ(ShowPickle("]K\x01"
                       "b."),
            "[].1");
}

TEST(PickleCalls, RecordsTellTheirClassAndAttributes) {
  const std::string slots = CallOf("a", "C") + "N}\x8c\x01xK\x05s\x86" + "b.";
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseBytes(slots));
  const Value& record = *parsed.document.root;
  EXPECT_TRUE(record.Calls("a.C"));
  EXPECT_FALSE(record.Calls("a.D"));
  EXPECT_EQ(record.ClassName(), "a.C");
  ASSERT_NE(record.Attribute("x"), nullptr);
  EXPECT_EQ(record.Attribute("x")->integer(), 5);
  EXPECT_EQ(record.Attribute("y"), nullptr);
  ASSERT_OK_AND_ASSIGN(const Parsed nested, ParseBytes(CallOf("a", "f") + ")R."));
  EXPECT_EQ(nested.document.root->ClassName(), "a.f");
  EXPECT_FALSE(nested.document.root->Calls("a.f"));
}

TEST(PickleCalls, OfPureConstructorsAreValues) {
  EXPECT_EQ(ShowCall("collections", "OrderedDict", ""), "{}");
  EXPECT_EQ(ShowPickle(CallOf("collections", "OrderedDict") + "K\x01K\x02s}K\x03K\x04sb."),
            "{1: 2}.{3: 4}");
  EXPECT_EQ(ShowCall("collections", "OrderedDict", "((K\x01K\x02lK\x03K\x04\x86l"), "{1: 2, 3: 4}");
  EXPECT_EQ(ShowCall("__builtin__", "set", "(K\x01K\x02l"), "set(1, 2)");
  EXPECT_EQ(ShowCall("__builtin__", "frozenset", ""), "set()");
  EXPECT_EQ(ShowCall("torch", "Size", "K\x01K\x02\x86"), "(1, 2)");
  EXPECT_EQ(ShowCall("torch", "Size", "(K\x01l"), "(1)");
  EXPECT_EQ(ShowCall("__builtin__", "complex", "F1.5\nK\x02"), "(1.5+2j)");
  EXPECT_EQ(ShowCall("__builtin__", "bytearray", ""), "b''");
  EXPECT_EQ(ShowCall("__builtin__", "bytes", ""), "b''");
  EXPECT_EQ(ShowCall("__builtin__", "bytearray", "Vab\nVlatin-1\n"), "b'ab'");
  EXPECT_EQ(ShowCall("__builtin__", "bytearray", "B\x01\x00\x00\x00z"sv), "b'z'");
  EXPECT_EQ(ShowCall("_codecs", "encode", "V\\u00ff\\u0000\nVlatin1\n"), "b'\\xff\\x00'");
  EXPECT_EQ(ShowCall("_codecs", "encode", "V\\u00ff\n"), "b'\\xc3\\xbf'");
}

TEST(PickleCalls, OfConstructorsWithOtherArgumentsAreRecords) {
  EXPECT_EQ(ShowCall("collections", "OrderedDict", "K\x01"), "collections.OrderedDict(1)");
  EXPECT_EQ(ShowCall("collections", "OrderedDict", "(K\x01l"), "collections.OrderedDict([1])");
  EXPECT_EQ(ShowCall("__builtin__", "set", "K\x01"), "builtins.set(1)");
  EXPECT_EQ(ShowCall("torch", "Size", "K\x01"), "torch.Size(1)");
  EXPECT_EQ(ShowCall("__builtin__", "complex", "NN"), "builtins.complex(None, None)");
  // Python makes so many zeros of it.
  EXPECT_EQ(ShowCall("__builtin__", "bytearray", "J\xff\xff\xff\x7f"),
            "builtins.bytearray(2147483647)");
  EXPECT_EQ(ShowCall("_codecs", "encode", "V\\u0100\nVlatin1\n"),
            "_codecs.encode('\xc4\x80', 'latin1')");
  EXPECT_EQ(ShowCall("_codecs", "encode", "Va\nVrot13\n"), "_codecs.encode('a', 'rot13')");
}

TEST(PickleCalls, OfGetattrNameWhatAClassHas) {
  const std::string getattr = Global("__builtin__", "getattr") + "(" + Global("a", "C");
  EXPECT_EQ(ShowPickle(getattr + "Vd\ntR."), "<a.C.d>");
  EXPECT_EQ(ShowPickle(getattr + "K\x01tR."), "builtins.getattr(<a.C>, 1)");
  EXPECT_EQ(ShowCall("__builtin__", "getattr", "NVd\n"), "builtins.getattr(None, 'd')");
}

TEST(PickleCalls, OfCopyregAreRecordsOfTheClass) {
  const std::string of_class = "(" + Global("a", "C");
  EXPECT_EQ(ShowPickle("ccopy_reg\n_reconstructor\n" + of_class + Global("__builtin__", "object") +
                       "NtR."),
            "a.C()");
  EXPECT_EQ(ShowPickle("ccopy_reg\n_reconstructor\n" + of_class + Global("__builtin__", "dict") +
                       "}K\x01K\x02stR."),
            "a.C({1: 2})");
  EXPECT_EQ(ShowPickle("ccopy_reg\n__newobj__\n" + of_class + "K\x01tR."), "a.C(1)");
  EXPECT_EQ(ShowPickle("ccopyreg\n__newobj_ex__\n" + of_class + "K\x01\x85}K\x02K\x03stR."),
            "a.C(1, **{2: 3})");
}

TEST(PickleCalls, NamesOfPython2AreThoseOfPython3) {
  EXPECT_EQ(ShowPickle("c__builtin__\nlong\n."), "<builtins.int>");
  EXPECT_EQ(ShowPickle("c__builtin__\nobject\n."), "<builtins.object>");
  EXPECT_EQ(ShowPickle("cUserDict\nIterableUserDict\n."), "<collections.UserDict>");
  // Somebody's own module, in a pickle of Python 3.
  EXPECT_EQ(ShowPickle("\x80\x04"
                       "crepr\nRepr\n."),
            "<repr.Repr>");
}

// numpy's scalar(dtype("f8"), bytes).
std::string NumpyScalar(std::string_view type, std::string_view bytes, std::string_view order) {
  const std::string dtype =
      fmt::format("cnumpy\ndtype\n(V{}\nI00\nI01\ntR(K\x03V{}\nNNNtb", type, order);
  return ShowPickle(fmt::format("cnumpy.core.multiarray\nscalar\n({}C{}{}tR.", dtype,
                                static_cast<char>(bytes.size()), bytes));
}

TEST(PickleCalls, NumpyScalarsAreNumbers) {
  EXPECT_EQ(NumpyScalar("f8", "\x00\x00\x00\x00\x00\x00\xf8\x3f"sv, "<"), "1.5");
  EXPECT_EQ(NumpyScalar("f8", "\x3f\xf8\x00\x00\x00\x00\x00\x00"sv, ">"), "1.5");
  EXPECT_EQ(NumpyScalar("f4", "\x00\x00\xc0\x3f"sv, "<"), "1.5");
  EXPECT_EQ(NumpyScalar("f2", "\x00\x3e"sv, "<"), "1.5");
  EXPECT_EQ(NumpyScalar("f2", "\x01\x80"sv, "<"), "-5.960464477539063e-08");
  EXPECT_EQ(NumpyScalar("f2", "\x00\x7c"sv, "<"), "inf");
  EXPECT_EQ(NumpyScalar("i1", "\xff", "|"), "-1");
  EXPECT_EQ(NumpyScalar("i2", "\xff\x00"sv, ">"), "-256");
  EXPECT_EQ(NumpyScalar("i4", "\xfe\xff\xff\xff", "<"), "-2");
  EXPECT_EQ(NumpyScalar("i8", "\x01\x00\x00\x00\x00\x00\x00\x00"sv, "<"), "1");
  EXPECT_EQ(NumpyScalar("u1", "\xff", "|"), "255");
  EXPECT_EQ(NumpyScalar("u8", "\xff\xff\xff\xff\xff\xff\xff\xff", "<"), "18446744073709551615");
  EXPECT_EQ(NumpyScalar("b1", "\x01", "|"), "True");
  EXPECT_EQ(NumpyScalar("c8", "\x3f\x80\x00\x00\x40\x00\x00\x00"sv, ">"), "(1+2j)");
  // Texts, dates, and bytes of another length stay what they are.
  EXPECT_THAT(NumpyScalar("U1", "a\x00\x00\x00"sv, "<"),
              testing::StartsWith("numpy.core.multiarray.scalar("));
  EXPECT_THAT(NumpyScalar("f8", "\x00", "<"), testing::StartsWith("numpy.core.multiarray.scalar("));
}

TEST(PickleCalls, OfWhatExecutesAreRefused) {
  ExpectRefused(CallOf("os", "system", "Vid\n"), "os.system");
  ExpectRefused(CallOf("posix", "system", "Vid\n"), "posix.system");
  ExpectRefused(CallOf("__builtin__", "eval", "V1\n"), "builtins.eval");
  ExpectRefused(CallOf("builtins", "exec", "V1\n"), "builtins.exec");
  ExpectRefused(CallOf("commands", "getoutput", "Vid\n"), "subprocess.getoutput");
  ExpectRefused(CallOf("torch", "load", "Vx\n"), "torch.load");
  ExpectRefused(CallOf("importlib.util", "module_from_spec"), "importlib.util.module_from_spec");
  ExpectRefused("csubprocess\nPopen\n)\x81.", "subprocess.Popen");
  ExpectRefused("csubprocess\nPopen\n)}\x92.", "subprocess.Popen");
  ExpectRefused("(Vid\nios\nsystem\n.", "os.system");
  ExpectRefused("(cos\nsystem\nVid\no.", "os.system");
  ExpectRefused(CallOf("copyreg", "__newobj__", Global("subprocess", "Popen")), "subprocess.Popen");
  ExpectRefused(CallOf("copyreg", "__newobj_ex__", Global("subprocess", "Popen") + ")}"),
                "subprocess.Popen");
}

TEST(PickleCalls, OfWhatExecutesAreRefusedBehindOtherNames) {
  // A module that another one imports.
  ExpectRefused(CallOf("torch.serialization", "os.system", "Vid\n"),
                "torch.serialization.os.system");
  ExpectRefused(CallOf("builtins", "getattr", Global("os", "path") + "Vsystem\n") + ")R.",
                "os.path.system");
  // The result that a call of a harmless function would give.
  ExpectRefused(CallOf("functools", "partial", Global("os", "system") + "Vid\n") + ")R.",
                "os.system");
  ExpectRefused(
      CallOf("builtins", "getattr",
             CallOf("operator", "getitem", Global("sys", "modules") + "Vos\n") + "Vsystem\n") +
          "(Vid\ntR.",
      "sys.modules");
  ExpectRefused(CallOf("operator", "methodcaller", "Vsystem\n") + "(" +
                    Global("torch.serialization", "os") + "tR.",
                "torch.serialization.os");
  ExpectRefused(CallOf("builtins", "map", Global("os", "system") + "(Vid\nl"), "os.system");
}

TEST(PickleCalls, ReferencesToWhatExecutesAreHarmless) {
  EXPECT_EQ(ShowPickle("cos\nsystem\n."), "<os.system>");
  EXPECT_EQ(ShowCall("functools", "partial", Global("os", "system")),
            "functools.partial(<os.system>)");
  EXPECT_EQ(ShowCall("posixpath", "join", "Va\n"), "posixpath.join('a')");
  EXPECT_EQ(ShowCall("my.os", "Config", ""), "my.os.Config()");
  EXPECT_EQ(ShowCall("torch.storage", "_load_from_bytes", "C\x01z"),
            "torch.storage._load_from_bytes(b'z')");
}

// An error is one line whatever a file calls its things.
TEST(PickleCalls, NamesInErrorsAreEscaped) {
  const auto parsed = ParseBytes(
      "\x8c\x02os\x8c\x03"
      "a\nb\x93)R.");
  EXPECT_THAT(parsed, Says("would run os.a\\nb,"));
}

TEST(PickleCalls, LaterValuesOfAKeyCount) {
  EXPECT_EQ(ShowPickle("}(VK\nK\x01VL\nK\x02VK\nK\x03u."), "{'K': 3, 'L': 2}");
  // As Python compares keys: numbers of all kinds, but neither texts with bytes nor lists.
  EXPECT_EQ(ShowPickle("}(K\x01K\x01\x88K\x02"
                       "F1\nK\x03"
                       "F1.5\nK\x04"
                       "F1.5\nK\x05u."),
            "{1: 3, 1.5: 5}");
  EXPECT_EQ(ShowPickle("}(VK\nK\x01"
                       "C\x01KK\x02]K\x03]K\x04NK\x05NK\x06u."),
            "{'K': 1, b'K': 2, []: 3, []: 4, None: 6}");
  std::string many = "}(";
  for (int i = 0; i < 40; ++i) many += fmt::format("V{}\nI{}\n", i % 20, i);
  ASSERT_OK_AND_ASSIGN(const Parsed parsed, ParseBytes(many + "u."));
  EXPECT_EQ(parsed.document.root->entries().size(), 20u);
  EXPECT_EQ(parsed.document.root->Get("7")->integer(), 27);
  EXPECT_EQ(parsed.document.root->Get("20"), nullptr);
}

}  // namespace
}  // namespace ckptd::pickle
