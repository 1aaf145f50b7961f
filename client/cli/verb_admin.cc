#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "client/cli/exit_codes.h"
#include "client/cli/json_views.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

using Kind = JsonField::Kind;

// A result of few facts: an object, or one sentence unless --quiet.
void PrintResult(const std::vector<JsonField>& fields, const std::string& sentence,
                 Context& context) {
  if (context.json()) {
    context.io.out << ToJson(fields) << '\n';
  } else if (!context.globals.quiet) {
    context.io.out << Escape(sentence) << '\n';
  }
}

JsonField RankField(int32_t rank) {
  return {"rank", "", static_cast<uint64_t>(rank), Kind::kNumber};
}

std::string UnloadedText(const std::string& name, const DaemonInfo& daemon,
                         const AdminClient::Unloaded& unloaded) {
  if (unloaded.cancelled) {
    return fmt::format("{} was loading: the load is cancelled, on every rank", name);
  }
  return fmt::format("{} of rank {} is unloaded, {} free for other loads{}", name, daemon.rank,
                     HumanBytes(unloaded.freed_bytes), OtherRanks(daemon.world_size));
}

absl::StatusOr<int> RunUnload(const std::vector<std::string>& ids, bool force, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const DaemonInfo daemon, admin.Info());
  for (const std::string& id : ids) {
    const std::string name = CheckpointName(id);
    CKPTD_ASSIGN_OR_RETURN(const AdminClient::Unloaded unloaded, admin.Unload(name, force));
    PrintResult({{"name", name},
                 RankField(daemon.rank),
                 {"freed_bytes", "", unloaded.freed_bytes, Kind::kNumber},
                 {"cancelled", "", unloaded.cancelled ? 1U : 0U, Kind::kBool}},
                UnloadedText(name, daemon, unloaded), context);
  }
  return kExitFine;
}

absl::StatusOr<int> RunPin(const std::string& id, bool off, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const CheckpointInfo checkpoint, admin.Pin(CheckpointName(id), !off));
  PrintResult({{"name", checkpoint.name},
               RankField(checkpoint.rank),
               {"pinned", "", checkpoint.pinned ? 1U : 0U, Kind::kBool}},
              fmt::format("{} of rank {} is {}{}", checkpoint.name, checkpoint.rank,
                          checkpoint.pinned ? "pinned: it is never evicted"
                                            : "no longer pinned: it may be evicted",
                          OtherRanks(checkpoint.world_size)),
              context);
  return kExitFine;
}

std::string TrimmedText(const DaemonInfo& daemon, const AdminClient::Trimmed& trimmed) {
  const std::string lingering =
      trimmed.lingering_bytes == 0
          ? ""
          : fmt::format(", and {} that clients still map", HumanBytes(trimmed.lingering_bytes));
  return fmt::format("rank {} gave {} back to the system; {} of checkpoints stay until they are "
                     "unloaded{}{}",
                     daemon.rank, HumanBytes(trimmed.freed_bytes), HumanBytes(trimmed.used_bytes),
                     lingering, OtherRanks(daemon.world_size));
}

absl::StatusOr<int> RunTrim(Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const DaemonInfo daemon, admin.Info());
  CKPTD_ASSIGN_OR_RETURN(const AdminClient::Trimmed trimmed, admin.Trim());
  PrintResult({RankField(daemon.rank),
               {"freed_bytes", "", trimmed.freed_bytes, Kind::kNumber},
               {"used_bytes", "", trimmed.used_bytes, Kind::kNumber},
               {"lingering_bytes", "", trimmed.lingering_bytes, Kind::kNumber}},
              TrimmedText(daemon, trimmed), context);
  return kExitFine;
}

absl::StatusOr<int> RunDrain(const std::string& wait, Context& context) {
  std::optional<Timeout> patience;
  if (!wait.empty()) {
    CKPTD_ASSIGN_OR_RETURN(patience, ParseTimeout(wait));
  }
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const DaemonInfo daemon, admin.Info());
  CKPTD_ASSIGN_OR_RETURN(const uint32_t remaining, admin.Drain(patience));
  PrintResult({RankField(daemon.rank), {"remaining_leases", "", remaining, Kind::kNumber}},
              fmt::format("the daemon of rank {} takes no new work; {} lease{} left{}", daemon.rank,
                          remaining, remaining == 1 ? " is" : "s are",
                          OtherRanks(daemon.world_size)),
              context);
  return kExitFine;
}

absl::StatusOr<int> RunLogLevel(const std::string& level, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const std::string previous, admin.SetLogLevel(level));
  PrintResult({{"level", level}, {"previous_level", previous}},
              fmt::format("the daemon now logs at {} (before: {})", level, previous), context);
  return kExitFine;
}

}  // namespace

void AddUnload(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "unload", "Drop checkpoints' shards from the daemon's memory",
      "A leased one is refused without --force. Trainers that have mapped it keep their memory.\n"
      "It goes from one rank's daemon, the others keep theirs: --rank chooses it. One that is\n"
      "still loading is refused, too; with --force its load is cancelled, on every rank. Of\n"
      "several, the first that is refused ends it; with --output json each is an object of its\n"
      "own.\n\n"
      "Examples:\n"
      "  ckptctl unload checkpoints/3f9a12c4\n"
      "  ckptctl list --state FAILED --quiet | xargs -r ckptctl unload\n"
      "  ckptctl unload --force checkpoints/3f9a12c4   # a load that was a mistake\n");
  auto names = std::make_shared<std::vector<std::string>>();
  auto force = std::make_shared<bool>(false);
  verb->add_option("NAME", *names, "The checkpoints, as load and list name them")->required();
  verb->add_flag("--force", *force, "Also when it is leased, or still loading");
  verb->callback([names, force, &context] {
    context.action = [names, force, &context] { return RunUnload(*names, *force, context); };
  });
}

void AddPin(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "pin", "Keep a checkpoint from being evicted",
                           "In one rank's daemon, without the others: --rank chooses it.\n\n"
                           "Examples:\n"
                           "  ckptctl pin checkpoints/3f9a12c4\n"
                           "  ckptctl pin checkpoints/3f9a12c4 --off\n");
  auto name = std::make_shared<std::string>();
  auto off = std::make_shared<bool>(false);
  verb->add_option("NAME", *name, "The checkpoint, as load and list name it")->required();
  verb->add_flag("--off", *off, "Let it be evicted again");
  verb->callback([name, off, &context] {
    context.action = [name, off, &context] { return RunPin(*name, *off, context); };
  });
}

void AddTrim(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "trim", "Give a daemon's free memory back to the system",
      "That is host memory which no checkpoint needs: what was faulted in ahead (--arena), and what\n"
      "unloaded checkpoints left. The next load makes memory anew, which takes longer. Memory of\n"
      "checkpoints stays (`ckptctl unload`), and what clients map stays until they let go.\n"
      "It is one rank's daemon, without the others: --rank chooses it.\n\n"
      "Examples:\n"
      "  ckptctl trim\n"
      "  ckptctl trim --rank 3 --output json\n");
  verb->callback([&context] { context.action = [&context] { return RunTrim(context); }; });
}

void AddDrain(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "drain", "Refuse new loads and leases from now on, before a shutdown",
      "With --wait it waits until the last lease has ended; exit code 4 says some remain.\n"
      "It is one rank's daemon, without the others: --rank chooses it.\n\n"
      "Examples:\n"
      "  ckptctl drain\n"
      "  ckptctl drain --wait 5m\n");
  auto wait = std::make_shared<std::string>();
  verb->add_option("--wait", *wait, "Wait this long for leases to end, as in 90s or 5m")
      ->type_name("DURATION");
  verb->callback([wait, &context] {
    context.action = [wait, &context] { return RunDrain(*wait, context); };
  });
}

void AddLogLevel(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "log-level", "Set how much the daemon logs, until it restarts",
                           "Example:\n"
                           "  ckptctl log-level debug\n");
  auto level = std::make_shared<std::string>();
  verb->add_option("LEVEL", *level, "trace, debug, info, warn, error or off")
      ->required()
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}));
  verb->callback([level, &context] {
    context.action = [level, &context] { return RunLogLevel(*level, context); };
  });
}

}  // namespace ckptd::cli
