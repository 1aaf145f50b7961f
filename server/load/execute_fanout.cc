#include "server/load/execute_fanout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tuple>

#include "common/base/at_once.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/error_priority.h"
#include "server/protocol/timing.h"

namespace ckptd {
ExecuteFanout::ExecuteFanout(std::vector<Member> members, Load load,
                             std::function<Progress()> progress)
    : members_(std::move(members)), load_(std::move(load)), progress_(std::move(progress)) {
  for (const Member& member : members_) {
    auto stream = Begin(member);
    if (!stream.ok()) {
      MutexLock lock(mutex_);
      broken_rank_ = member.rank;
      broken_ = stream.status();
      return;
    }
    streams_.push_back(std::move(stream).value());
  }
  auto ticker = StartThread("telling ranks that their part begins", [this] { Tick(); });
  if (ticker.ok()) {
    ticker_ = *std::move(ticker);
    return;
  }
  MutexLock lock(mutex_);
  broken_ = ticker.status();
}

absl::StatusOr<std::unique_ptr<ExecuteStream>> ExecuteFanout::Begin(const Member& member) const {
  ExecuteCall call{load_.epoch, load_.name, load_.deadline, {}};
  if (member.read) call.read = member.read();
  if (member.scatter) call.scatter = member.scatter();
  return member.link->Execute(call);
}

ExecuteFanout::~ExecuteFanout() { Stop(); }

void ExecuteFanout::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  if (ticker_.joinable()) ticker_.join();
}

bool ExecuteFanout::Cause::Settled() const {
  const absl::Status& why = failure.second;
  return !why.ok() && (!IsSecondary(why) || Clock::now() - since >= timing::kPrimaryError);
}

void ExecuteFanout::Cause::Note(Failure next, std::optional<size_t> of) {
  if (!Outranks(next.second, failure.second)) return;
  if (failure.second.ok()) since = Clock::now();
  failure = std::move(next);
  member = of;
}

void ExecuteFanout::Tick() {
  std::vector<bool> ended(streams_.size());
  Cause cause;
  for (bool stop = false; !stop;) {  // members hear once at least that it has begun
    SendAll(progress_(), ended, cause);
    if (cause.Settled()) break;
    MutexLock lock(mutex_);
    stop = changed_.WaitUntil(mutex_, Clock::now() + timing::kFanoutTick,
                              [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
  }
  MutexLock lock(mutex_);
  std::tie(broken_rank_, broken_) = cause.failure;
  changed_.NotifyAll();
}

void ExecuteFanout::SendAll(const Progress& progress, std::vector<bool>& ended, Cause& cause) {
  for (size_t i = 0; i < streams_.size() && !cause.Settled(); ++i) {
    if (ended[i] || streams_[i]->Send(progress)) continue;
    ended[i] = true;
    cause.Note({members_[i].rank, EndedEarly(*streams_[i])}, i);
  }
}

ExecuteFanout::Failure ExecuteFanout::broken() const {
  MutexLock lock(mutex_);
  return {broken_rank_, broken_};
}

ExecuteFanout::Failure ExecuteFanout::AwaitBroken() const {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, Clock::now() + timing::kPrimaryError,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !broken_.ok(); });
  return {broken_rank_, broken_};
}

ExecuteFanout::Failure ExecuteFanout::Finish() {
  Stop();
  if (auto early = broken(); !early.second.ok()) return early;
  StreamAnswers answers(streams_);
  Cause cause;
  cause.Note({0, answers.Start(kMostCalls)}, {});
  if (!cause.failure.second.ok()) return cause.failure;
  std::vector<bool> answered(streams_.size());
  Clock::time_point moved = Clock::now();
  Clock::time_point sent = moved;
  bool told = false;
  for (size_t left = streams_.size(); left > 0;) {
    TellOthers(cause, told);
    const Progress progress = progress_();  // of the members that still read
    if (Clock::now() - sent >= timing::kFanoutTick) {
      answers.Send(progress);
      sent = Clock::now();
    }
    const size_t came = Collect(answers, told, answered, cause);
    left -= came;
    if (came > 0 || progress.bytes_done < progress.bytes_total) moved = Clock::now();
    if (told) continue;
    cause.Note({0, load_.cancelled()}, {});
    const bool still = cause.failure.second.ok() && Clock::now() - moved >= load_.patience;
    if (still) cause.Note(Stalled(answered), {});
  }
  return cause.failure;
}

void ExecuteFanout::TellOthers(const Cause& cause, bool& told) {
  if (told || !cause.Settled()) return;
  told = true;
  AbortOthers(cause.member, cause.failure.second);
}

size_t ExecuteFanout::Collect(StreamAnswers& answers, bool told, std::vector<bool>& answered,
                              Cause& cause) {
  size_t came = 0;
  for (auto& [i, answer] : answers.Take(timing::kFanoutTick)) {
    ++came;
    answered[i] = true;
    if (!answer.ok() && !told) cause.Note({members_[i].rank, answer.status()}, i);
    if (!answer.ok() || members_[i].read == nullptr) continue;
    answer->reader = members_[i].rank;
    // Its last heartbeat may not have had the end of it.
    if (load_.answered) load_.answered(*answer);
  }
  return came;
}

ExecuteFanout::Failure ExecuteFanout::Stalled(const std::vector<bool>& answered) const {
  std::vector<uint32_t> ranks;
  for (size_t i = 0; i < answered.size(); ++i) {
    if (!answered[i] && members_[i].scatter != nullptr) ranks.push_back(members_[i].rank);
  }
  if (ranks.empty()) return {};
  const bool one = ranks.size() == 1;  // of several, who holds up the others is not known
  absl::Status why = MakeError(
      absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
      fmt::format("waiting for {} {} to receive by NCCL: all was read and sent, and nothing has "
                  "come to an end for {:.0f} s; look at the GPUs and links between them, then load "
                  "again, or with --comm host",
                  one ? "rank" : "ranks", fmt::join(ranks, ", "),
                  std::chrono::duration<double>(load_.patience).count()));
  if (!one) return {0, std::move(why)};
  return {ranks.front(), WithFact(why, "rank", std::to_string(ranks.front()))};
}

// Who still works for nothing stops then, and answers.
void ExecuteFanout::AbortOthers(std::optional<size_t> failed, const absl::Status& why) {
  if (load_.failing) load_.failing();
  AtOnce(members_.size(), kMostCalls, [&](size_t i) {
    if (i == failed || !members_[i].works()) return;
    // Who cannot be told is about to be dropped, which ends its stream.
    members_[i].link->Abort(load_.name, why, Clock::now() + timing::kAbort).IgnoreError();
  });
}

}  // namespace ckptd
