#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/all_ranks.h"
#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/output.pb.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Prints a result of few facts: as JSON, or one sentence unless --quiet.
absl::Status PrintResult(const google::protobuf::Message& facts, const std::string& sentence,
                         Context& context) {
  if (context.json()) return PrintJson(facts, context.io.out);
  if (!context.globals.quiet) context.io.out << Escape(sentence) << '\n';
  return absl::OkStatus();
}

std::string UnloadedText(const UnloadOutput& unloaded, int32_t world_size) {
  if (unloaded.cancelled()) {
    return fmt::format("{} was loading: the load is cancelled, on every rank", unloaded.name());
  }
  return fmt::format("{} of rank {} is unloaded, {} free for other loads{}", unloaded.name(),
                     unloaded.rank(), HumanBytes(unloaded.freed_bytes()), OtherRanks(world_size));
}

struct UnloadOptions {
  std::vector<std::string> ids;
  bool force = false;
  bool idle = false;
  bool all_ranks = false;
};

// Checkpoints without leases and pins.
absl::StatusOr<std::vector<std::string>> IdleNames(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(Client client, context.Connect());
  CKPTD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse listed, client.List());
  std::vector<std::string> names;
  for (const v1::Checkpoint& one : listed.checkpoints()) {
    const bool idle =
        one.state() == v1::Checkpoint::STATE_ACTIVE && one.lease_count() == 0 && !one.pinned();
    if (idle) names.push_back(one.name());
  }
  return names;
}

// Whether this error is expected from some of several ranks, because they lack the checkpoint.
bool IsMissingOnThisRank(const absl::Status& status, bool all_ranks) {
  return all_ranks && ReasonOf(status) == reason::kCheckpointNotFound;
}

absl::Status UnloadOf(const UnloadOptions& options, Context& context, absl::Status& lacking,
                      size_t& unloaded_count) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse daemon, admin.Info());
  std::vector<std::string> ids = options.ids;
  if (options.idle) {
    CKPTD_ASSIGN_OR_RETURN(ids, IdleNames(context));
  }
  for (const std::string& id : ids) {
    const std::string name = CheckpointName(id);
    const auto unloaded = admin.Unload(name, options.force, options.idle);
    if (IsMissingOnThisRank(unloaded.status(), options.all_ranks || options.idle)) {
      lacking = unloaded.status();
      continue;
    }
    // A client has acquired it meanwhile, will do so, or other ranks are being filled.
    const std::string why = ReasonOf(unloaded.status());
    if (options.idle && (why == reason::kLeased || why == reason::kNotActive)) continue;
    CKPTD_RETURN_IF_ERROR(unloaded.status());
    ++unloaded_count;
    UnloadOutput output;
    output.set_name(name);
    output.set_rank(daemon.rank());
    output.set_freed_bytes(unloaded->freed_bytes());
    output.set_cancelled(unloaded->cancelled());
    CKPTD_RETURN_IF_ERROR(
        PrintResult(output, UnloadedText(output, daemon.world_size()), context));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunUnload(const UnloadOptions& options, Context& context) {
  if (options.idle == !options.ids.empty()) {
    return UsageError("name checkpoints, or give --idle for those that nobody holds");
  }
  absl::Status lacking;
  size_t unloaded = 0;
  CKPTD_RETURN_IF_ERROR(ForEachRank(context, options.all_ranks, [&](Context& one) {
    return UnloadOf(options, one, lacking, unloaded);
  }));
  if (unloaded == 0 && options.idle) context.Note("nothing is idle");
  if (unloaded == 0 && !options.idle) CKPTD_RETURN_IF_ERROR(lacking);
  return kExitFine;
}

absl::StatusOr<int> RunPin(const std::string& id, bool off, bool all_ranks, Context& context) {
  absl::Status lacking;
  bool done = false;
  const absl::Status status = ForEachRank(context, all_ranks, [&](Context& one) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(AdminClient admin, one.ConnectAdmin());
    const absl::StatusOr<v1::Checkpoint> pinned = admin.Pin(CheckpointName(id), !off);
    if (IsMissingOnThisRank(pinned.status(), all_ranks)) {
      lacking = pinned.status();
      return absl::OkStatus();
    }
    CKPTD_RETURN_IF_ERROR(pinned.status());
    done = true;
    return PrintResult(*pinned,
                       fmt::format("{} of rank {} is {}{}", pinned->name(), pinned->rank(),
                                   pinned->pinned() ? "pinned: it is never evicted"
                                                    : "no longer pinned: it may be evicted",
                                   all_ranks ? "" : OtherRanks(pinned->world_size())),
                       context);
  });
  CKPTD_RETURN_IF_ERROR(status);
  if (!done) CKPTD_RETURN_IF_ERROR(lacking);
  return kExitFine;
}

std::string TrimmedText(const v1::GetDaemonInfoResponse& daemon,
                        const v1::TrimMemoryResponse& trimmed) {
  const std::string lingering =
      trimmed.lingering_bytes() == 0
          ? ""
          : fmt::format(", and {} that clients still map", HumanBytes(trimmed.lingering_bytes()));
  return fmt::format("rank {} gave {} back to the system; {} of checkpoints stay until they are "
                     "unloaded{}{}",
                     daemon.rank(), HumanBytes(trimmed.freed_bytes()),
                     HumanBytes(trimmed.used_bytes()), lingering, OtherRanks(daemon.world_size()));
}

absl::StatusOr<int> RunTrim(Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse daemon, admin.Info());
  CKPTD_ASSIGN_OR_RETURN(const v1::TrimMemoryResponse trimmed, admin.Trim());
  CKPTD_RETURN_IF_ERROR(PrintResult(trimmed, TrimmedText(daemon, trimmed), context));
  return kExitFine;
}

// Drains all ranks first, so that none takes new work while another is waited for. Errors are
// ignored here, because the next request to that rank reports them.
void DrainEveryRank(const Context& context) {
  Context quiet = context;
  quiet.globals.quiet = true;
  const absl::Status told = ForEachRank(quiet, true, [](Context& one) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(AdminClient admin, one.ConnectAdmin());
    return admin.Drain(std::nullopt).status();
  });
  (void)told;
}

absl::StatusOr<int> RunDrain(const std::string& wait, bool all_ranks, Context& context) {
  std::optional<Timeout> patience;
  if (!wait.empty()) {
    CKPTD_ASSIGN_OR_RETURN(patience, ParseTimeout(wait));
  }
  const auto end = Clock::now() + patience.value_or(Timeout(0));
  if (all_ranks && patience.has_value()) DrainEveryRank(context);
  const absl::Status status = ForEachRank(context, all_ranks, [&](Context& one) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(AdminClient admin, one.ConnectAdmin());
    CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse daemon, admin.Info());
    // Each rank gets the time that is left.
    std::optional<Timeout> left = patience;
    if (all_ranks && left.has_value()) {
      left = std::max(std::chrono::ceil<Timeout>(end - Clock::now()), Timeout(1));
    }
    CKPTD_ASSIGN_OR_RETURN(const v1::DrainDaemonResponse drained, admin.Drain(left));
    DrainOutput output;
    output.set_rank(daemon.rank());
    output.set_remaining_leases(drained.remaining_leases());
    return PrintResult(output,
                       fmt::format("the daemon of rank {} takes no new work; {} lease{} left{}",
                                   output.rank(), output.remaining_leases(),
                                   output.remaining_leases() == 1 ? " is" : "s are",
                                   all_ranks ? "" : OtherRanks(daemon.world_size())),
                       context);
  });
  CKPTD_RETURN_IF_ERROR(status);
  return kExitFine;
}

absl::StatusOr<int> RunLogLevel(const std::string& level, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const v1::SetLogLevelResponse set, admin.SetLogLevel(level));
  CKPTD_RETURN_IF_ERROR(PrintResult(
      set, fmt::format("the daemon now logs at {} (before: {})", level, set.previous_level()),
      context));
  return kExitFine;
}

}  // namespace

void AddUnload(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "unload", "Drop checkpoints' shards from the daemon's memory",
      "A leased one is refused without --force. Trainers that have mapped it keep their memory.\n"
      "It goes from one rank's daemon, the others keep theirs: --rank chooses it, --all-ranks\n"
      "means all that hold it. One that is still loading is refused, too; with --force its load is\n"
      "cancelled, on every rank. Of several, the first that is refused ends it; with --output json\n"
      "each is an object of its own.\n\n"
      "Examples:\n"
      "  ckptctl unload checkpoints/3f9a12c4\n"
      "  ckptctl unload --idle --all-ranks\n"
      "  ckptctl list --state FAILED --quiet | xargs -r ckptctl unload\n"
      "  ckptctl unload --force checkpoints/3f9a12c4   # a load that was a mistake\n");
  auto options = std::make_shared<UnloadOptions>();
  verb->add_option("NAME", options->ids, "The checkpoints, as load and list name them");
  verb->add_flag("--force", options->force, "Also when it is leased, or still loading");
  verb->add_flag("--idle", options->idle, "All that are neither leased nor pinned");
  AddAllRanks(*verb, options->all_ranks);
  verb->callback([options, &context] {
    context.action = [options, &context] { return RunUnload(*options, context); };
  });
}

void AddPin(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(app, "pin", "Keep a checkpoint from being evicted",
                           "In one rank's daemon: --rank chooses it, --all-ranks means all that hold it.\n\n"
                           "Examples:\n"
                           "  ckptctl pin checkpoints/3f9a12c4 --all-ranks\n"
                           "  ckptctl pin checkpoints/3f9a12c4 --off\n");
  auto name = std::make_shared<std::string>();
  auto off = std::make_shared<bool>(false);
  auto all_ranks = std::make_shared<bool>(false);
  verb->add_option("NAME", *name, "The checkpoint, as load and list name it")->required();
  verb->add_flag("--off", *off, "Let it be evicted again");
  AddAllRanks(*verb, *all_ranks);
  verb->callback([name, off, all_ranks, &context] {
    context.action = [name, off, all_ranks, &context] {
      return RunPin(*name, *off, *all_ranks, context);
    };
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
      "It is one rank's daemon: --rank chooses it, --all-ranks means all that are on this host.\n\n"
      "Examples:\n"
      "  ckptctl drain --all-ranks\n"
      "  ckptctl drain --wait 5m\n");
  auto wait = std::make_shared<std::string>();
  verb->add_option("--wait", *wait, "Wait this long for leases to end, as in 90s or 5m")
      ->type_name("DURATION");
  auto all_ranks = std::make_shared<bool>(false);
  AddAllRanks(*verb, *all_ranks);
  verb->callback([wait, all_ranks, &context] {
    context.action = [wait, all_ranks, &context] { return RunDrain(*wait, *all_ranks, context); };
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
