#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/cli/exit_codes.h"
#include "client/cli/json.h"
#include "client/cli/output.pb.h"
#include "client/cli/progress.h"
#include "client/cli/text.h"
#include "client/cli/verbs.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"

namespace ckptd::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Timeout kWaitTimeout{600'000};
constexpr Timeout kPause{200};
// The calls of one attempt: a daemon that hangs may be replaced meanwhile.
constexpr Timeout kAttempt{2'000};

struct Condition {
  std::string text;    // "group", or the checkpoint that --for names
  std::string name;    // of a checkpoint; or
  std::string source;  // its absolute path
  bool is_group() const { return name.empty() && source.empty(); }
};

absl::StatusOr<Condition> ParseCondition(const std::string& text) {
  constexpr std::string_view kActive = "active=";
  Condition condition{text, "", ""};
  if (text == "group") return condition;
  if (text.rfind(kActive, 0) != 0 || text.size() == kActive.size()) {
    return UsageError(fmt::format("--for {}: expected group, or active=NAME with the checkpoint's "
                                  "name or the path of its source",
                                  text));
  }
  condition.text = text.substr(kActive.size());
  if (condition.text.find('/') == std::string::npos || condition.text.rfind("checkpoints/", 0) == 0) {
    condition.name = CheckpointName(condition.text);
    return condition;
  }
  CKPTD_ASSIGN_OR_RETURN(condition.source, AbsolutePath(condition.text));
  return condition;
}

// The findings of one look at the daemon: the answer, or how it stands.
struct Found {
  std::optional<WaitOutput> done;
  std::string state;
};

absl::StatusOr<Found> LookAtGroup(const Context& context) {
  CKPTD_ASSIGN_OR_RETURN(AdminClient admin, context.ConnectAdmin());
  CKPTD_ASSIGN_OR_RETURN(const v1::GetDaemonInfoResponse info, admin.Info());
  if (info.state() == "DRAINING") {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDraining,
                     fmt::format("waiting for the group: the daemon of rank {} drains and will "
                                 "serve no more; wait again when it was restarted",
                                 info.rank()));
  }
  if (info.state() != "READY") {
    return Found{std::nullopt, "the group is not complete: " + info.detail()};
  }
  WaitOutput output;
  output.set_condition("group");
  output.set_rank(info.rank());
  output.set_world_size(info.world_size());
  return Found{output, ""};
}

// The newest checkpoint that the condition means. Nullopt if there is none yet.
absl::StatusOr<std::optional<v1::Checkpoint>> Newest(Client& client, const Condition& condition) {
  if (condition.source.empty()) {
    const auto found = client.Get(condition.name);
    if (ReasonOf(found.status()) == reason::kCheckpointNotFound) return std::nullopt;
    CKPTD_RETURN_IF_ERROR(found.status());
    return *found;
  }
  CKPTD_ASSIGN_OR_RETURN(const v1::ListCheckpointsResponse listed, client.List());
  for (const v1::Checkpoint& one : listed.checkpoints()) {  // the newest first
    if (one.source() == condition.source) return one;
  }
  return std::nullopt;
}

absl::StatusOr<Found> LookAtCheckpoint(const Condition& condition, const Context& attempt,
                                       Timeout left, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(Client client, attempt.Connect());
  CKPTD_ASSIGN_OR_RETURN(std::optional<v1::Checkpoint> found, Newest(client, condition));
  if (!found.has_value()) {
    return Found{std::nullopt, fmt::format("there is no load of {} yet", condition.text)};
  }
  if (found->state() == v1::Checkpoint::STATE_LOADING) {
    CKPTD_ASSIGN_OR_RETURN(found, Follow(client, found->name(), left, context));
  }
  CKPTD_RETURN_IF_ERROR(CheckActive(*found));
  WaitOutput output;
  output.set_condition("active");
  output.set_rank(found->rank());
  output.set_world_size(found->world_size());
  *output.mutable_checkpoint() = *std::move(found);
  return Found{output, ""};
}

// Whether a later attempt may find more: a daemon that answers, or another load of the source.
bool MayComeYet(const absl::Status& status, const Condition& condition) {
  const std::string why = ReasonOf(status);
  // Its daemons may just be opening their folder to the group that it is in. Administration stays closed.
  if (absl::IsPermissionDenied(status)) return !condition.is_group();
  return why == reason::kDaemonUnreachable || why == reason::kDeadline ||
         (why == reason::kRankLost && !condition.source.empty());
}

absl::Status NotInTime(const Condition& condition, Timeout timeout, const absl::StatusOr<Found>& last) {
  const std::string doing =
      fmt::format("waiting for {}: not within {}",
                  condition.is_group() ? "the group" : condition.text, HumanDuration(timeout));
  if (!last.ok()) return WithContext(last.status(), doing);
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("{}: {}; look at the daemons' logs, or give --timeout more", doing,
                               last->state));
}

absl::Status Hopeless(const absl::Status& status, const Condition& condition) {
  if (!absl::IsPermissionDenied(status) || !condition.is_group()) return status;
  return WithContext(status,
                     "waiting for the group, which is the daemon's user's to ask for; as another user "
                     "wait for what you need of it (--for active=NAME)");
}

std::string StateOf(const absl::StatusOr<Found>& last) {
  if (last.ok()) return last->state;
  return absl::IsPermissionDenied(last.status()) ? MessageOf(last.status()) : "no daemon answers yet";
}

std::string Sentence(const WaitOutput& output) {
  if (output.condition() == "group") {
    return fmt::format("the group of {} is complete", output.world_size());
  }
  const v1::Checkpoint& one = output.checkpoint();
  return fmt::format("{} is {}: rank {} of {} holds {}", one.name(), NameOf(one.state()),
                     one.rank(), one.world_size(), HumanBytes(one.slab_bytes()));
}

absl::Status Print(WaitOutput output, Clock::duration waited, Context& context) {
  const Seconds seconds = waited;
  output.set_waited_seconds(seconds.count());
  if (context.json()) return PrintJson(output, context.io.out);
  if (context.globals.quiet) return absl::OkStatus();
  context.io.out << Escape(Sentence(output)) << fmt::format(" ({})\n", HumanDuration(seconds));
  return absl::OkStatus();
}

int Interrupted(const Context& context) {
  context.Note("stopped waiting");
  return kExitInterrupted;
}

absl::StatusOr<Found> Look(const Condition& condition, Timeout left, Context& context) {
  Context attempt = context;
  attempt.globals.timeout = fmt::format("{}ms", std::min(left, kAttempt).count());
  return condition.is_group() ? LookAtGroup(attempt)
                              : LookAtCheckpoint(condition, attempt, left, context);
}

absl::StatusOr<int> RunWait(const std::string& text, Context& context) {
  CKPTD_ASSIGN_OR_RETURN(const Condition condition, ParseCondition(text));
  const Timeout timeout = context.TimeoutOr(kWaitTimeout);
  const auto begun = Clock::now();
  ProgressView view(context.io, context.globals.quiet);
  absl::StatusOr<Found> last = absl::UnavailableError("");
  for (Timeout left = timeout;;) {
    auto found = Look(condition, left, context);
    if (absl::IsCancelled(found.status())) return Interrupted(context);
    if (!found.ok() && !MayComeYet(found.status(), condition)) return Hopeless(found.status(), condition);
    if (found.ok() && found->done.has_value()) {
      view.Clear();
      CKPTD_RETURN_IF_ERROR(Print(*found->done, Clock::now() - begun, context));
      return kExitFine;
    }
    // An attempt that the end has cut short says less than the answer before it.
    if (found.ok() || !last.ok() || left >= kAttempt) last = std::move(found);
    left = std::chrono::ceil<Timeout>(begun + timeout - Clock::now()) - kPause;
    if (left.count() <= 0) return NotInTime(condition, timeout, last);
    view.Update(StateOf(last));
    if (!Pauses(context.io.interrupt).Wait(kPause)) return Interrupted(context);
  }
}

}  // namespace

void AddWait(CLI::App& app, Context& context) {
  CLI::App* verb = AddVerb(
      app, "wait", "Wait until the group is complete, or a checkpoint can be attached",
      "For init containers, queues and scripts. The daemon need not run yet. NAME is a checkpoint, or\n"
      "the path of its source, of which the newest load counts; a load that fails ends the waiting\n"
      "with its error. --timeout bounds it (default 10m). Exit code 4 says that the daemon answers\n"
      "and it is not so yet, 3 that no daemon answers. Another user than the daemon's, let in by\n"
      "--allow-gid, can wait for a checkpoint, not for the group.\n\n"
      "Examples:\n"
      "  ckptctl wait\n"
      "  ckptctl wait --for active=/models/llama --timeout 30m\n"
      "  ckptctl wait --for active=checkpoints/3f9a12c4 --output json\n");
  auto text = std::make_shared<std::string>("group");
  verb->add_option("--for", *text, "group: every rank has joined. active=NAME: it is ACTIVE")
      ->capture_default_str();
  verb->callback([text, &context] {
    context.action = [text, &context] { return RunWait(*text, context); };
  });
}

}  // namespace ckptd::cli
