#include "server/group/follower.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/group/membership.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {


// The transfer itself reports more often, through Execute, but only until the leader has read its
// own share.
bool IsNews(const Catalog& catalog, const std::string& name, const Progress& progress) {
  if (progress.stage < Stage::kTransferring) return true;
  if (progress.stage == Stage::kWaitingForMemory) return true;
  const auto known = catalog.Get(name);
  return known.ok() && known->progress.stage == progress.stage &&
         known->progress.bytes_done < progress.bytes_done;
}

}  // namespace

Follower::Follower(Parts parts, MemberIdentity identity)
    : parts_(std::move(parts)), identity_(std::move(identity)), thread_([this] { Loop(); }) {}

Follower::~Follower() {
  Stop();
  thread_.join();
}

void Follower::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
}

void Follower::SendHeartbeatNow() {
  MutexLock lock(mutex_);
  heartbeat_due_ = true;
  changed_.NotifyAll();
}

Follower::State Follower::state() const {
  MutexLock lock(mutex_);
  return state_;
}

std::string Follower::secret() const {
  MutexLock lock(mutex_);
  return secret_;
}

bool Follower::WaitReady(Deadline deadline) const {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (state_.joined && state_.missing_ranks.empty());
  });
  return state_.joined && state_.missing_ranks.empty();
}

bool Follower::IsCurrent(uint64_t epoch) const {
  MutexLock lock(mutex_);
  if (epoch >= state_.epoch) return true;
  // A leader that has just accepted this rank may call before its answer has been read here.
  changed_.WaitUntil(mutex_, Clock::now() + timing::kJoin,
                     [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return state_.joined || stopping_;
                     });
  return epoch >= state_.epoch;
}

absl::StatusOr<std::string> Follower::Propose(const LoadRequest& request, Deadline deadline) {
  // A daemon that has just started may be asked before it has joined.
  {
    MutexLock lock(mutex_);
    const Deadline patient = std::min(
        deadline, Clock::now() + std::chrono::duration_cast<Clock::duration>(parts_.refused_patience));
    const auto joined = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return state_.joined || stopping_;
    };
    const auto joined_or_refused = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return state_.joined || stopping_ || state_.refused;
    };
    if (!changed_.WaitUntil(mutex_, patient, joined)) {
      changed_.WaitUntil(mutex_, deadline, joined_or_refused);
    }
    if (!state_.joined || stopping_) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                       fmt::format("loading {}: rank {} has not joined the group: {}",
                                   request.source, identity_.rank, state_.detail),
                       {{"ranks", "0"}});
    }
  }
  // A leader that has stalled is not waited for as long as one that has not started yet.
  return parts_.leader->Propose(identity_.rank, request,
                                std::min(deadline, Clock::now() + timing::kProposalCall));
}

bool Follower::Pause(std::chrono::nanoseconds duration) {
  MutexLock lock(mutex_);
  changed_.WaitUntil(
      mutex_, Clock::now() + std::chrono::duration_cast<Clock::duration>(duration),
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || heartbeat_due_; });
  heartbeat_due_ = false;
  return !stopping_;
}

bool Follower::HasNews() const {
  // Heartbeats come often until the group is complete, and while others wait for this rank.
  if (!state().missing_ranks.empty() || parts_.reading.Now().has_value()) return true;
  if (parts_.catalog.eviction().AnyWaiting()) return true;
  return parts_.participants != nullptr && !parts_.participants->Empty();
}

void Follower::Loop() {
  std::chrono::nanoseconds retry = timing::kFirstJoinRetry;
  while (true) {
    while (!Join()) {
      if (!Pause(retry)) return;
      retry = std::min<std::chrono::nanoseconds>(retry * 2, timing::kLastJoinRetry);
    }
    retry = timing::kFirstJoinRetry;
    last_answer_ = Clock::now();
    while (SendHeartbeat()) {
      if (!Pause(HeartbeatPause(interval_, HasNews(), identity_.world_size))) return;
    }
    if (!Pause(timing::kFirstJoinRetry)) return;
  }
}

std::chrono::nanoseconds Follower::HeartbeatPause(std::chrono::nanoseconds interval, bool often,
                                                  uint32_t world_size) {
  if (!often) return interval;
  const std::chrono::nanoseconds share = world_size * timing::kHeartbeatShare;
  return std::min(interval, std::max<std::chrono::nanoseconds>(timing::kOftenHeartbeat, share));
}

void Follower::NotJoined(const absl::Status& why, uint64_t since) {
  const std::string detail = MessageOf(why);
  parts_.catalog.FailAllLoading(RankLost(0, detail), since);
  MutexLock lock(mutex_);
  if (state_.detail != detail) {
    Log(LogLevel::kInfo, "not joined yet: {}", detail);
  }
  state_.detail = detail;
  state_.refused = ReasonOf(why) == reason::kJoinRefused;
  changed_.NotifyAll();
}

// Ends what the leader no longer knows. If it is the same process, it had dropped this rank.
void Follower::EndLoadsUnknownToLeader(bool restarted, uint64_t since) {
  if (restarted && parts_.participants != nullptr) {
    parts_.participants->EndBarriers(RankLost(
        0, "it was restarted, and does not know which ranks have placed what they loaded"));
  }
  parts_.catalog.FailAllLoading(
      restarted ? RankLost(0, "it was restarted")
                : RankLost(identity_.rank, "rank 0 had no heartbeat of it for too long"),
      since);
  // Another leader, or one that had dropped this rank, has no mapping of our memory.
  parts_.memory.OnWriterRestart();
}

bool Follower::Join() {
  const uint64_t since = parts_.catalog.Tick();
  auto reply = parts_.leader->Join(identity_, parts_.catalog.Residents(),
                                   Clock::now() + timing::kJoin);
  if (reply.ok() && reply->version != identity_.version) {
    reply = MakeError(absl::StatusCode::kFailedPrecondition, reason::kJoinRefused,
                      fmt::format("joining the group: the leader runs ckptd {}, rank {} runs {}; "
                                  "install the same version on every host",
                                  reply->version.empty() ? "of an unknown version" : reply->version,
                                  identity_.rank, identity_.version));
  }
  if (!reply.ok()) {
    NotJoined(reply.status(), since);
    return false;
  }
  if (!leader_incarnation_.empty()) {
    EndLoadsUnknownToLeader(leader_incarnation_ != reply->incarnation, since);
  }
  leader_incarnation_ = reply->incarnation;
  members_epoch_ = 0;
  interval_ = reply->heartbeat_interval;
  timeout_ = reply->heartbeat_timeout;
  parts_.on_secret(reply->secret);
  Log(LogLevel::kInfo, "joined the group, epoch {}", reply->epoch);
  MutexLock lock(mutex_);
  secret_ = reply->secret;
  state_ = {true, reply->epoch, {0}, ""};  // the first heartbeat tells whether it is complete
  changed_.NotifyAll();
  return true;
}

bool Follower::IsStillMember(const absl::Status& why, Clock::time_point asked) {
  if (why.code() == absl::StatusCode::kNotFound) {
    OnLeaderLost("it no longer knows this rank");  // the next Join tells why
    return false;
  }
  const auto now = Clock::now();
  // This process itself was stopped, so the leader has had no time to answer.
  if (now - asked > timeout_) last_answer_ = now;
  if (now - last_answer_ < timeout_) return true;
  parts_.catalog.FailAllLoading(RankLost(0, MessageOf(why)));
  OnLeaderLost(MessageOf(why));
  return false;
}

bool Follower::SendHeartbeat() {
  const auto begun = Clock::now();
  const auto deadline = begun + std::chrono::duration_cast<Clock::duration>(timeout_ / 2);
  const uint64_t since = parts_.catalog.Tick();
  for (std::string& proposal : parts_.catalog.watchers().ReapAbandoned(Clock::now())) {
    abandoned_.push_back(std::move(proposal));
  }
  const std::optional<ReadingNow> reading = parts_.reading.Now();
  std::vector<Participant> participants;
  if (parts_.participants != nullptr) participants = parts_.participants->Snapshot(begun);
  auto reply = parts_.leader->Heartbeat({identity_.rank, identity_.incarnation, members_epoch_,
                                         reading, abandoned_, parts_.catalog.ActiveNames(),
                                         parts_.catalog.eviction().MakeRoomForWaiting(), participants},
                                        deadline);
  if (!reply.ok()) return IsStillMember(reply.status(), begun);
  if (reading.has_value()) parts_.reading.NoteDelivered(*reading);
  last_answer_ = Clock::now();
  abandoned_.clear();
  if (parts_.participants != nullptr) parts_.participants->NoteDelivered(participants, reply->verdicts);
  std::set<std::string> known;
  for (const auto& [name, progress] : reply->loads) {
    known.insert(name);
    if (IsNews(parts_.catalog, name, progress)) parts_.catalog.UpdateProgress(name, progress);
  }
  parts_.catalog.FailForgotten(known, since);
  for (const auto& [name, ranks] : reply->residences) parts_.catalog.NoteResidence(name, ranks);
  if (!reply->members.empty()) {
    const bool all = std::exchange(members_epoch_, reply->epoch) == 0;
    const auto departed =
        all ? present_.Update(std::move(reply->members)) : present_.Merge(reply->members);
    for (const auto& [rank, incarnation] : departed) parts_.on_departed(rank, incarnation);
  }
  MutexLock lock(mutex_);
  state_.epoch = std::max(state_.epoch, reply->epoch);
  state_.missing_ranks = reply->missing_ranks;
  changed_.NotifyAll();
  return true;
}

void Follower::OnLeaderLost(const std::string& why) {
  Log(LogLevel::kWarn, "leader lost: {}", why);
  MutexLock lock(mutex_);
  state_.joined = false;
  // Calls of the lost leader that still arrive belong to an old epoch.
  ++state_.epoch;
  state_.detail = "rank 0 was lost: " + why;
}

}  // namespace ckptd
