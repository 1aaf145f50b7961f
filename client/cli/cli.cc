#include "client/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "client/cli/closest.h"
#include "client/cli/context.h"
#include "client/cli/exit_codes.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

constexpr char kAbout[] =
    "ckptctl talks to ckptd, the checkpoint loader daemon: it loads checkpoints, shows what is "
    "resident,\nand inspects, verifies, compares and converts checkpoint files without a daemon.";

constexpr char kFooter[] =
    "The daemon is found by --address, else CKPTD_ADDRESS ({rank} and {local_rank} are filled in),\n"
    "else the default socket of --job and --rank. Results go to stdout, all else to stderr.\n\n"
    "Exit codes: 0 fine, 1 failed, 2 bad usage, 3 daemon unreachable, 4 not ready or still loading,\n"
    "5 verification mismatch or another difference, 130 interrupted.\n\n"
    "Examples:\n"
    "  ckptctl load /models/llama --layout fsdp:8\n"
    "  ckptctl list\n"
    "  ckptctl plan /models/llama --layout fsdp:8\n\n"
    "`ckptctl VERB --help` tells more about a verb.\n";

std::string CheckDuration(const std::string& text) {
  const absl::Status status = ParseTimeout(text).status();
  return status.ok() ? std::string() : MessageOf(status);
}

void AddGlobals(CLI::App& app, Globals& globals) {
  app.add_option("--address", globals.address,
                 "The daemon's socket: unix:///path, a path, or host:port where that is forwarded to "
                 "(Env:CKPTD_ADDRESS)");
  app.add_option("--rank", globals.rank, "The rank whose daemon is meant (Env:RANK)")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("N");
  app.add_option("--job", globals.job, "The job whose daemons are meant (Env:CKPTD_JOB)");
  app.add_option("--timeout", globals.timeout, "How long to wait, as in 500ms, 90s, 5m, 2h")
      ->envname("CKPTD_TIMEOUT")
      ->check(CheckDuration)
      ->type_name("DURATION");
  app.add_option("--output", globals.output, "table for people, json for programs")
      ->envname("CKPTD_OUTPUT")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  app.add_flag("--quiet,-q", globals.quiet, "No progress and no remarks; list and load print names");
}

void AddVerbs(CLI::App& app, Context& context) {
  AddInspect(app, context);
  AddPlan(app, context);
  AddLoad(app, context);
  AddWatch(app, context);
  AddWait(app, context);
  AddList(app, context);
  AddGet(app, context);
  AddVerify(app, context);
  AddConvert(app, context);
  AddMerge(app, context);
  AddSplit(app, context);
  AddDiff(app, context);
  AddUnload(app, context);
  AddPin(app, context);
  AddLeases(app, context);
  AddInfo(app, context);
  AddTrim(app, context);
  AddDrain(app, context);
  AddLogLevel(app, context);
  AddCompletion(app, context);
  AddVersion(app, context);
}

// The verb that a help text or an error is about.
const CLI::App& Named(const CLI::App& app) {
  const auto named = app.get_subcommands();
  return named.empty() ? app : *named.front();
}

int ReportUsage(const CLI::App& app, const std::string& what, const Context& context) {
  const CLI::App& named = Named(app);
  const std::string verb = &named == &app ? "" : named.get_name() + " ";
  context.PrintError(UsageError(fmt::format("{}; see `ckptctl {}--help`", what, verb)));
  return kExitUsage;
}

// The name of an option or argument with an empty value, as from an unset variable of a script.
// Its default must not be used without notice.
std::string GivenEmpty(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& text : option->results()) {
      if (text.empty()) return option->get_name();
    }
  }
  return {};
}

// The value of --output or its variable, for a command line that could not be parsed. CLI11 has
// no option values then.
std::string OutputOf(const std::vector<std::string>& arguments) {
  constexpr std::string_view kOption = "--output";
  const char* const twin = std::getenv("CKPTD_OUTPUT");
  std::string output = twin == nullptr ? "" : twin;
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    const std::string_view word = arguments[i];
    if (word == kOption && i + 1 < arguments.size()) output = arguments[i + 1];
    if (word.starts_with("--output=")) output = word.substr(kOption.size() + 1);
  }
  return output;
}

// "; did you mean list?", if there is such a verb.
std::string Suggestion(std::string_view word, const std::vector<std::string>& known) {
  const std::string closest = Closest(word, known);
  return closest.empty() ? "" : fmt::format("; did you mean {}?", closest);
}

std::vector<std::string> VerbsOf(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) verbs.push_back(verb->get_name());
  return verbs;
}

// The options of the named verb, and global ones.
std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> options;
  for (const CLI::App* part : {&Named(app), &app}) {
    for (const CLI::Option* option : part->get_options()) {
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    }
  }
  return options;
}

// The words that no option or argument took, in their order. Empty if there are none.
std::string Unexpected(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> left = app.remaining(true);
  std::vector<std::string> words;
  for (const std::string& argument : arguments) {
    const auto at = std::find(left.begin(), left.end(), argument);
    if (at == left.end()) continue;
    words.push_back(argument);
    left.erase(at);
  }
  words.insert(words.end(), left.begin(), left.end());
  if (words.empty()) return {};
  const auto option = std::find_if(words.begin(), words.end(), [](const std::string& word) {
    return word.starts_with("--");
  });
  return fmt::format("{} not expected: {}{}",
                     words.size() == 1 ? "this argument was" : "these arguments were",
                     fmt::join(words, " "),
                     option == words.end()
                         ? ""
                         : Suggestion(option->substr(0, option->find('=')), OptionsOf(app)));
}

int ReportParseError(const CLI::App& app, const CLI::ParseError& error,
                     const std::vector<std::string>& arguments, Context& context) {
  context.globals.output = OutputOf(arguments);
  const std::vector<std::string> extra = app.remaining();
  const bool required = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  if (required && app.get_subcommands().empty() && !extra.empty()) {
    return ReportUsage(app,
                       fmt::format("`{}` is no verb of ckptctl{}", extra.front(),
                                   Suggestion(extra.front(), VerbsOf(app))),
                       context);
  }
  // If an option is misspelt, the error is about that, and not about a missing required option.
  const bool extras = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  const std::string unexpected = required || extras ? Unexpected(app, arguments) : "";
  return ReportUsage(app, unexpected.empty() ? error.what() : unexpected, context);
}

// Nullopt if the command line was parsed and a verb is to run.
std::optional<int> Parse(CLI::App& app, const std::vector<std::string>& arguments,
                         Context& context) {
  try {
    // in the order that CLI11 expects
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
    for (const CLI::App* part : {static_cast<const CLI::App*>(&app), &Named(app)}) {
      const std::string empty = GivenEmpty(*part);
      if (!empty.empty()) return ReportUsage(app, empty + " is empty", context);
    }
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    context.io.out << app.help();
    return kExitFine;
  } catch (const CLI::CallForVersion&) {
    context.io.out << "ckptctl " << CKPTD_VERSION << '\n';
    return kExitFine;
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, error, arguments, context);
  }
}

}  // namespace

CLI::App* AddVerb(CLI::App& app, const std::string& name, const std::string& description,
                  const std::string& footer) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->fallthrough();  // global options may follow the verb
  verb->footer(footer + "\nGlobal options (address, timeout, output): `ckptctl --help`\n");
  return verb;
}

int RunCli(const std::vector<std::string>& arguments, Io& io) {
  Context context(io);
  CLI::App app(kAbout, "ckptctl");
  app.footer(kFooter);
  app.set_version_flag("--version", CKPTD_VERSION);
  app.require_subcommand(1);
  AddGlobals(app, context.globals);
  AddVerbs(app, context);
  if (const std::optional<int> done = Parse(app, arguments, context)) return *done;
  const absl::StatusOr<int> result = context.action();
  if (result.ok()) return *result;
  if (IsUsageError(result.status())) {
    return ReportUsage(app, MessageOf(result.status()), context);
  }
  context.PrintError(result.status());
  return ExitCodeOf(result.status());
}

}  // namespace ckptd::cli
