#include "server/group/group_participants.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

using State = Participant::State;

constexpr size_t kMaxFailures = 256;               // failures that are kept
constexpr size_t kMaxNamed = 16;                   // ranks named in a message

bool SameLoad(const Participant& a, const Participant& b) {
  if (OfDifferentJobs(a, b)) return false;
  return a.source == b.source || (!a.real_source.empty() && a.real_source == b.real_source);
}

// Whether one of `all`, of the same job, has joined after `ended` has ended.
bool HasRejoined(const Participant& ended, const std::vector<Participant>& all) {
  return std::any_of(all.begin(), all.end(), [&ended](const Participant& one) {
    return one.age < ended.ended_age && !OfDifferentJobs(one, ended);
  });
}

Clock::duration Ticks(std::chrono::nanoseconds all) {
  return std::chrono::duration_cast<Clock::duration>(all);
}

// The error as other ranks get it.
absl::Status AttributeToRank(uint32_t rank, const absl::Status& why) {
  const std::string number = std::to_string(rank);
  const bool named = MessageOf(why).rfind("rank " + number + ": ", 0) == 0;
  return WithFact(named ? why : WithContext(why, "rank " + number), "rank", number);
}

}  // namespace

template <typename Act>
void GroupParticipants::ForOpenCallsOfOthers(uint32_t rank, const Participant& participant,
                                             Act act) {
  for (uint32_t one = 0; one < calls_.size(); ++one) {
    if (one == rank) continue;
    for (auto& [id, other] : calls_[one]) {
      if (!other.verdict.has_value() && SameLoad(other.participant, participant)) act(other);
    }
  }
}

std::vector<Verdict> GroupParticipants::Update(uint32_t rank, const std::vector<Participant>& all,
                                               Clock::time_point now) {
  MutexLock lock(mutex_);
  if (rank >= calls_.size()) return {};
  while (!failed_.empty() && now - failed_.front().when > timing::kKeepFailures) failed_.pop_front();
  Calls& calls = calls_[rank];
  std::set<std::string> told;
  for (const Participant& participant : all) {
    if (told.size() >= kMostParticipants) break;
    told.insert(participant.id);
    if (calls.count(participant.id) == 0) Begin(rank, participant, now);
    Advance(calls.at(participant.id), participant, HasRejoined(participant, all), now);
  }
  std::vector<Verdict> verdicts;
  for (auto at = calls.begin(); at != calls.end();) {
    at = told.count(at->first) > 0 ? std::next(at) : calls.erase(at);
  }
  for (auto& [id, call] : calls) {
    ApplyEarlierFailures(call, now);
    CheckDeadline(call, now);
    if (call.verdict.has_value()) verdicts.push_back({id, *call.verdict});
  }
  return verdicts;
}

void GroupParticipants::Begin(uint32_t rank, const Participant& participant,
                              Clock::time_point now) {
  for (FailedCall& failed : failed_) {
    const bool others = OfDifferentJobs(failed.participant, participant);
    failed.over = failed.over || (failed.rank == rank && !others);
  }
  Call call;
  call.rank = rank;
  call.participant = participant;
  call.participant.state = State::kLoading;
  call.joined = now - Ticks(participant.age);
  call.began = now;
  call.process_began = now - Ticks(participant.process_age);
  call.deadline = now + Ticks(participant.time_left);
  calls_[rank].emplace(participant.id, std::move(call));
}

void GroupParticipants::Advance(Call& call, const Participant& participant, bool rejoined,
                                Clock::time_point now) {
  const State before = std::exchange(call.participant.state, participant.state);
  // A participant with a verdict fails because of another rank, so its failure is not news.
  if (before == participant.state) return;
  if (call.verdict.has_value()) return NoteUnheard(call);
  if (participant.state == State::kPlaced) NotePlaced(call);
  if (participant.state != State::kFailed) return;
  FailedCall failed = FailedOf(call, participant.failure, now);
  failed.when -= Ticks(participant.ended_age);
  failed.over = rejoined;
  Fail(std::move(failed));
}

void GroupParticipants::NoteUnheard(const Call& call) {
  if (call.participant.state != State::kPlaced || call.participant.barrier) return;
  for (FailedCall& failed : failed_) {
    if (failed.why == *call.verdict) failed.notified.erase({call.rank, call.participant.pid});
  }
}

GroupParticipants::FailedCall GroupParticipants::FailedOf(const Call& call,
                                                          const absl::Status& why,
                                                          Clock::time_point now) {
  FailedCall failed;
  failed.rank = call.rank;
  failed.participant = call.participant;
  failed.why = AttributeToRank(call.rank, why);
  failed.when = failed.reported = now;
  return failed;
}

void GroupParticipants::Fail(FailedCall failed) {
  Log(LogLevel::kWarn, "{}", MessageOf(failed.why));
  if (!failed.over) NotifyOthers(failed);
  failed_.push_back(std::move(failed));
  if (failed_.size() > kMaxFailures) failed_.pop_front();
}

void GroupParticipants::NotifyOthers(FailedCall& failed) {
  const std::optional<uid_t> guest = failed.participant.guest;
  Ended ended{{failed.participant.source}, failed.why, guest};
  ForOpenCallsOfOthers(failed.rank, failed.participant, [&](Call& other) {
    // A participant that joined later may wait for the next call of that rank.
    if (other.joined > failed.when) return;
    ApplyFailure(other, failed);
    ended.sources.insert(other.participant.source);
  });
  std::erase_if(ended.sources, [this, guest](const std::string& source)
                    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsWaitedFor(source, guest); });
  if (!ended.sources.empty()) ended_.push_back(std::move(ended));
}

// A client whose shard is placed waits for nobody, unless it has a barrier.
bool GroupParticipants::IsWaitedFor(const std::string& source, std::optional<uid_t> guest) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const Calls& calls) {
    return std::any_of(calls.begin(), calls.end(), [&](const auto& one) {
      const Call& call = one.second;
      const State state = call.participant.state;
      const bool done = state == State::kPlaced && !call.participant.barrier;
      return call.participant.source == source && call.participant.guest == guest &&
             !call.verdict.has_value() && state != State::kFailed && !done;
    });
  });
}

std::vector<GroupParticipants::Ended> GroupParticipants::TakeEnded() {
  MutexLock lock(mutex_);
  return std::exchange(ended_, {});
}

std::set<std::string> GroupParticipants::JobsOf(uint32_t rank, const std::string& source,
                                                std::optional<uid_t> guest) const {
  MutexLock lock(mutex_);
  std::set<std::string> jobs;
  if (rank >= calls_.size()) return {""};
  for (const auto& [id, call] : calls_[rank]) {
    const Participant& one = call.participant;
    if (one.source == source && one.guest == guest) jobs.insert(one.job);
  }
  if (jobs.empty()) jobs.insert("");
  return jobs;
}

void GroupParticipants::ApplyFailure(Call& call, FailedCall& failed) {
  const bool placed = call.participant.state == State::kPlaced && !call.participant.barrier;
  if (call.participant.state == State::kFailed || placed) return;
  failed.notified.insert({call.rank, call.participant.pid});
  call.verdict = failed.why;
}

void GroupParticipants::ApplyEarlierFailures(Call& call, Clock::time_point now) {
  for (FailedCall& failed : failed_) {
    if (call.verdict.has_value()) return;
    if (OfDifferentJobs(call.participant, failed.participant)) continue;
    const bool outlived = failed.over || call.process_began > failed.when ||
                          failed.notified.count({call.rank, call.participant.pid}) > 0;
    const bool too_late = call.joined - failed.when > timing::kFailureVisibleFor;
    if (failed.rank == call.rank || outlived || too_late) continue;
    const bool same = SameLoad(call.participant, failed.participant);
    // The rank may have made its next call, and its daemon not reported it yet.
    const auto waited = now - std::max(call.began, failed.reported);
    const bool absent = waited >= timing::kAbsentAfter && !IsInACall(failed.rank, failed.participant);
    if (same ? waited >= timing::kRejoinGrace : absent) ApplyFailure(call, failed);
  }
}

bool GroupParticipants::IsInACall(uint32_t rank, const Participant& of_its_job) const {
  return std::any_of(calls_[rank].begin(), calls_[rank].end(), [&of_its_job](const auto& one) {
    const Call& call = one.second;
    return !call.verdict.has_value() && call.participant.state != State::kFailed &&
           !OfDifferentJobs(call.participant, of_its_job);
  });
}

void GroupParticipants::NotePlaced(Call& call) {
  std::vector<Call*> waiting;
  if (call.participant.barrier) waiting.push_back(&call);
  call.placed.insert(call.rank);
  ForOpenCallsOfOthers(call.rank, call.participant, [&](Call& other) {
    if (!other.participant.barrier) return;
    other.placed.insert(call.rank);
    if (other.participant.state != State::kPlaced) return;
    call.placed.insert(other.rank);
    waiting.push_back(&other);
  });
  for (Call* one : waiting) {
    if (one->placed.size() == calls_.size()) one->verdict = absl::OkStatus();
  }
}

std::string GroupParticipants::Missing(const Call& call) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < calls_.size(); ++rank) {
    if (call.placed.count(rank) == 0) missing.push_back(rank);
  }
  const bool more = missing.size() > kMaxNamed;
  if (more) missing.resize(kMaxNamed);
  return fmt::format("rank{} {}{}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "),
                     more ? ", ..." : "");
}

void GroupParticipants::CheckDeadline(Call& call, Clock::time_point now) {
  const Participant& participant = call.participant;
  const bool waits = participant.state == State::kPlaced && participant.barrier;
  if (!waits || call.verdict.has_value() || now < call.deadline) return;
  const absl::Status why = MakeError(
      absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
      fmt::format("loading {} with a barrier: the timeout passed before {} had placed what it "
                  "loads; every rank must make this call with barrier=True, see the others' logs",
                  participant.source, Missing(call)));
  call.verdict = why;
  Fail(FailedOf(call, why, now));
}

void GroupParticipants::Forget(uint32_t rank, Clock::time_point now) {
  MutexLock lock(mutex_);
  if (rank >= calls_.size()) return;
  const Calls calls = std::exchange(calls_[rank], {});
  for (const auto& [id, call] : calls) {
    const Participant& participant = call.participant;
    const bool done = participant.state == State::kPlaced && !participant.barrier;
    if (done || participant.state == State::kFailed || call.verdict.has_value()) continue;
    const absl::Status why = MakeError(
        absl::StatusCode::kUnavailable, reason::kRankLost,
        fmt::format("loading {}: its daemon left the group before its process {} had its weights; "
                    "see that daemon's log, and load again",
                    participant.source, participant.pid));
    Fail(FailedOf(call, why, now));
  }
}

}  // namespace ckptd
