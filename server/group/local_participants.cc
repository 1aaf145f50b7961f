#include "server/group/local_participants.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

using State = Participant::State;

constexpr size_t kMaxLeaving = 16;  // each occupies a server thread
constexpr size_t kMaxIdBytes = 128;

absl::Status BrokenOff(const Participant& participant) {
  return MakeError(absl::StatusCode::kAborted, reason::kRankLost,
                   fmt::format("loading {}: its process {} has ended, or was stopped, before it had "
                               "its weights; see its log, and start the job again",
                               participant.source, participant.pid));
}

}  // namespace

absl::Status LocalParticipants::Join(Participant participant, Answer answer,
                                     Clock::time_point now) {
  Answer early_answer;
  absl::Status outcome;
  {
    MutexLock lock(mutex_);
    DropOld(now);
    if (entries_.size() >= kMostParticipants) {
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kTooManyWaiting,
                       fmt::format("joining the load of {}: {} clients take part in loads at this "
                                   "daemon already; load without taking part",
                                   participant.source, entries_.size()));
    }
    const std::string id = participant.id;
    if (id.empty() || id.size() > kMaxIdBytes || entries_.count(id) > 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("joining the load of {}: its participant is empty, longer than "
                                   "{} bytes, or in use; name it by a new UUID",
                                   participant.source, kMaxIdBytes));
    }
    Entry& entry = entries_[id] = {std::move(participant), now, ++joined_, std::move(answer)};
    if (auto early = early_.extract(id)) {
      outcome = std::move(early.mapped().outcome);
      early_answer = End(entry, outcome);
    }
    changed_.NotifyAll();
  }
  on_change_();
  if (early_answer != nullptr) early_answer(outcome);
  return absl::OkStatus();
}

LocalParticipants::Answer LocalParticipants::End(Entry& entry, const absl::Status& outcome) {
  Participant& participant = entry.participant;
  if (participant.state != State::kLoading && outcome.ok()) return nullptr;
  participant.state = outcome.ok() ? State::kPlaced : State::kFailed;
  participant.failure = outcome;
  entry.ended = Clock::now();
  // With a barrier, it is answered when all ranks have placed theirs.
  const bool answered = !outcome.ok() || !participant.barrier;
  return answered ? std::exchange(entry.answer, nullptr) : nullptr;
}

void LocalParticipants::Leave(const std::string& id, const absl::Status& outcome,
                              Deadline deadline) {
  Answer answer;
  {
    MutexLock lock(mutex_);
    const bool waits = leaving_ < kMaxLeaving;
    const auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return entries_.count(id) > 0; };
    ++leaving_;
    if (waits) changed_.WaitUntil(mutex_, std::min(deadline, Clock::now() + timing::kLateJoinWait), known);
    --leaving_;
    const auto at = entries_.find(id);
    if (at == entries_.end()) return NoteEarly(id, outcome);
    // A participant that was answered has nothing more to report.
    if (at->second.answer == nullptr) return;
    answer = End(at->second, outcome);
  }
  on_change_();
  if (answer != nullptr) answer(outcome);
  if (outcome.ok()) return;
  MutexLock lock(mutex_);
  if (leaving_ >= kMaxLeaving) return;
  ++leaving_;
  changed_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_.count(id) == 0;
  });
  --leaving_;
}

void LocalParticipants::NoteEarly(const std::string& id, const absl::Status& outcome) {
  const auto now = Clock::now();
  std::erase_if(early_, [now](const auto& one) { return now - one.second.at > timing::kKeepFailures; });
  // One that cannot be kept is taken for lost: the client has gone on by itself.
  if (early_.size() < kMostParticipants && id.size() <= kMaxIdBytes) early_[id] = {outcome, now};
}

void LocalParticipants::Lost(const std::string& id) {
  Answer answer;
  absl::Status why;
  {
    MutexLock lock(mutex_);
    const auto at = entries_.find(id);
    if (at == entries_.end() || at->second.answer == nullptr) return;
    why = BrokenOff(at->second.participant);
    answer = End(at->second, why);
  }
  on_change_();
  answer(why);
}

void LocalParticipants::EndBarriers(const absl::Status& why) {
  std::vector<Answer> answers;
  {
    MutexLock lock(mutex_);
    for (auto at = entries_.begin(); at != entries_.end();) {
      const bool ends = at->second.participant.barrier && at->second.answer != nullptr;
      if (ends) answers.push_back(std::move(at->second.answer));
      at = ends ? entries_.erase(at) : std::next(at);
    }
    changed_.NotifyAll();
  }
  for (const Answer& answer : answers) answer(why);
}

void LocalParticipants::DropOld(Clock::time_point now) {
  const size_t dropped = std::erase_if(entries_, [now](const auto& one) {
    return one.second.answer == nullptr && now - one.second.ended > timing::kFailureVisibleFor;
  });
  if (dropped > 0) changed_.NotifyAll();
}

std::vector<Participant> LocalParticipants::Snapshot(Clock::time_point now) {
  MutexLock lock(mutex_);
  DropOld(now);
  std::vector<const Entry*> entries;
  for (const auto& [id, entry] : entries_) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(),
            [](const Entry* a, const Entry* b) { return a->order < b->order; });
  std::vector<Participant> all;
  for (const Entry* entry : entries) {
    Participant& told = all.emplace_back(entry->participant);
    told.age = now - entry->joined;
    told.process_age += told.age;
    told.time_left -= told.age;
    if (told.state != State::kLoading) told.ended_age = now - entry->ended;
  }
  return all;
}

void LocalParticipants::NoteDelivered(const std::vector<Participant>& told,
                             const std::vector<Verdict>& verdicts) {
  std::vector<std::pair<Answer, absl::Status>> answers;
  {
    MutexLock lock(mutex_);
    for (const Participant& one : told) {
      const auto at = entries_.find(one.id);
      if (at == entries_.end() || at->second.answer != nullptr) continue;
      if (at->second.participant.state == one.state) entries_.erase(at);
    }
    for (const Verdict& verdict : verdicts) {
      const auto at = entries_.find(verdict.id);
      if (at == entries_.end() || at->second.answer == nullptr) continue;
      answers.emplace_back(std::move(at->second.answer), verdict.status);
      entries_.erase(at);
    }
    changed_.NotifyAll();
  }
  for (const auto& [answer, status] : answers) answer(status);
}

bool LocalParticipants::Empty() const {
  MutexLock lock(mutex_);
  return entries_.empty();
}

}  // namespace ckptd
