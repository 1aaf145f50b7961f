#include "server/load/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// Of a load that waits for memory, between attempts: each opens its files and plans again.
constexpr std::chrono::milliseconds kFirstPause{100};
constexpr std::chrono::milliseconds kLongestPause{5000};

}  // namespace

const KnownCheckpoint* Rounds::FindKnown(const Proposal& proposal) const {
  for (const auto& [name, known] : known_) {
    if (known.load_key != proposal.load_key || known.holders.empty()) continue;
    if (proposal.rank >= known.request_digests.size()) continue;
    if (known.request_digests[proposal.rank] == proposal.digest) return &known;
  }
  return nullptr;
}

std::optional<std::vector<SourceFile>> Rounds::FilesToCheck(const Proposal& proposal) const {
  MutexLock lock(mutex_);
  const KnownCheckpoint* known = FindKnown(proposal);
  if (known == nullptr) return std::nullopt;
  return known->files;
}

bool Rounds::IsNew(const Proposal& proposal) const {
  MutexLock lock(mutex_);
  for (const auto& [name, round] : rounds_) {
    if (Takes(name, round, proposal)) return false;
  }
  return FindKnown(proposal) == nullptr;
}

Rounds::Round Rounds::NewRound(const Proposal& proposal, Deadline deadline,
                               Deadline memory_deadline) {
  Round round;
  round.order = ++begun_;
  round.begun_by = proposal.rank;
  round.request = proposal.request;
  round.load_key = proposal.load_key;
  round.deadline = deadline;
  round.memory_deadline = memory_deadline;
  round.stated.resize(world_size_);
  round.digests.resize(world_size_, 0);
  round.statements.resize(world_size_);
  return round;
}

void Rounds::Add(Round& round, const Proposal& proposal) {
  const uint32_t rank = proposal.rank;
  round.digests[rank] = proposal.digest;
  round.statements[rank] = proposal.request.statement;
  if (!IsRankForm(proposal.request)) return;
  round.stated[rank] = std::get<std::shared_ptr<const RankLayout>>(proposal.request.layout);
}

void Rounds::AddLate(Round& round) {
  for (const Round::Late& late : round.late) Add(round, late.proposal);
  round.late.clear();
}

bool Rounds::Takes(const std::string& name, const Round& round, const Proposal& proposal) const {
  if (round.load_key != proposal.load_key || round.failing) return false;
  if (!IsRankForm(proposal.request)) return true;
  const uint32_t rank = proposal.rank;
  // A rank that already stated something else belongs to a later round.
  if (round.digests[rank] != 0) return round.digests[rank] == proposal.digest;
  if (!round.running) return true;
  const auto known = known_.find(name);
  return known != known_.end() && known->second.request_digests[rank] == proposal.digest;
}

bool Rounds::IsEnding(const Proposal& proposal) const {
  bool taken = false;
  for (const auto& [name, round] : rounds_) {
    if (!Takes(name, round, proposal)) continue;
    if (round.ending) return true;
    taken = true;
  }
  if (taken) return false;
  // Under another name it would wait for ranks that hold theirs and state nothing.
  const KnownCheckpoint* known = FindKnown(proposal);
  const auto held = known == nullptr ? rounds_.end() : rounds_.find(known->name);
  return held != rounds_.end() && held->second.failing;
}

bool Rounds::WaitWhileEnding(const Proposal& proposal, Deadline deadline) const {
  MutexLock lock(mutex_);
  return ended_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !IsEnding(proposal);
  });
}

absl::Status Rounds::CheckRoom(const Proposal& proposal) const {
  const auto own = static_cast<size_t>(
      std::count_if(rounds_.begin(), rounds_.end(),
                    [&](const auto& open) { return open.second.begun_by == proposal.rank; }));
  if (own < kMostOpenOfRank && rounds_.size() < kMostOpen) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kTooManyLoads,
      fmt::format("loading {}: {} loads are open, {} of them begun by rank {}, and there may be {} "
                  "and {}; wait for one of them to end, or end it (`ckptctl list`, `ckptctl unload "
                  "--force`)",
                  proposal.request.source, rounds_.size(), own, proposal.rank, kMostOpen,
                  kMostOpenOfRank),
      {{"rank", std::to_string(proposal.rank)}});
}

absl::StatusOr<std::optional<std::string>> Rounds::Propose(const Proposal& proposal, bool reuse,
                                                           Clock::time_point now) {
  const Deadline deadline = now + proposal.request.timeout;
  const Deadline memory_deadline = now + proposal.request.wait_memory;
  MutexLock lock(mutex_);
  if (IsEnding(proposal)) return std::optional<std::string>();
  std::string name;
  uint64_t newest = 0;
  for (const auto& [open, round] : rounds_) {
    if (!Takes(open, round, proposal) || round.order < newest) continue;
    // An older one may be of trainers that have ended since.
    name = open;
    newest = round.order;
  }
  if (name.empty()) {
    const KnownCheckpoint* known = FindKnown(proposal);
    if (known != nullptr && !reuse) {
      known_.erase(std::string(known->name));
      // Another one of the same name and layout may be of the files as they are.
      if (FindKnown(proposal) != nullptr) return std::optional<std::string>();
      known = nullptr;
    }
    CKPTD_RETURN_IF_ERROR(CheckRoom(proposal));
    const bool join = known != nullptr && rounds_.count(known->name) == 0;
    name = join ? known->name : "checkpoints/" + RandomHex(8);
    rounds_.emplace(name, NewRound(proposal, deadline, memory_deadline));
  }
  Round& round = rounds_.at(name);
  if (!round.running) {
    // Whoever asked before, and has given up since, does not end it for this one.
    round.deadline = std::max(round.deadline, deadline);
    round.memory_deadline = std::max(round.memory_deadline, memory_deadline);
    Add(round, proposal);
  } else if (IsRankForm(proposal.request) && round.digests[proposal.rank] == 0) {
    round.late.push_back({proposal, deadline, memory_deadline});
  }
  return name;
}

void Rounds::Withdraw(uint32_t rank, const std::vector<std::string>& statements,
                      Clock::time_point now) {
  MutexLock lock(mutex_);
  for (auto& [name, round] : rounds_) {
    const std::string& made = round.statements[rank];
    if (round.running || made.empty() || !IsRankForm(round.request)) continue;
    if (std::find(statements.begin(), statements.end(), made) == statements.end()) continue;
    round.digests[rank] = 0;
    round.stated[rank] = nullptr;
    round.statements[rank].clear();
    const auto stated = [](uint64_t digest) { return digest != 0; };
    if (std::none_of(round.digests.begin(), round.digests.end(), stated)) round.deadline = now;
  }
}

std::vector<int32_t> Rounds::MissingOf(const std::string& name, const Round& round) const {
  std::vector<int32_t> missing;
  if (!IsRankForm(round.request)) return missing;
  const auto known = known_.find(name);
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    const bool held = known != known_.end() && known->second.holders.count(rank) > 0;
    if (round.digests[rank] == 0 && !held) missing.push_back(static_cast<int32_t>(rank));
  }
  return missing;
}

std::vector<const Rounds::Round*> Rounds::WhereStated() const {
  std::vector<const Round*> stated(world_size_, nullptr);
  for (const auto& [name, open] : rounds_) {
    if (open.running || !IsRankForm(open.request)) continue;
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      if (open.digests[rank] != 0) stated[rank] = &open;
    }
  }
  return stated;
}

Rounds::Expired Rounds::Seen(const std::string& name, const Round& round,
                             const std::vector<const Round*>& stated) const {
  Expired out{name, MissingOf(name, round), {}, round.cancelled};
  if (!round.refused_by.empty()) {
    out.refused = round.refused;
    out.waiting.assign(round.refused_by.begin(), round.refused_by.end());
    return out;
  }
  out.elsewhere = Elsewhere(round, out.waiting, stated);
  return out;
}

// A rank that is waited for has not stated anything in that round, nor holds its checkpoint:
// whatever is found is another one.
std::string Rounds::Elsewhere(const Round& round, const std::vector<int32_t>& waiting,
                              const std::vector<const Round*>& stated) const {
  for (const int32_t rank : waiting) {
    const Round* const other = stated[static_cast<size_t>(rank)];
    if (other == nullptr) continue;
    const bool same = other->request.source == round.request.source;
    return fmt::format("rank {} loads {}{}", rank, other->request.source,
                       same ? " with other options" : "");
  }
  for (const auto& [other, known] : known_) {
    if (known.load_key != round.load_key) continue;
    const auto holds = [&holders = known.holders](int32_t rank) {
      return holders.count(static_cast<uint32_t>(rank)) > 0;
    };
    const auto rank = std::find_if(waiting.begin(), waiting.end(), holds);
    if (rank != waiting.end()) return fmt::format("rank {} holds its shard of {}", *rank, other);
  }
  return "";
}

std::vector<ReadyLoad> Rounds::TakeReady() {
  MutexLock lock(mutex_);
  std::vector<ReadyLoad> ready;
  for (auto& [name, round] : rounds_) {
    const bool begins = !round.running && round.cancelled.ok() && round.refused_by.empty() &&
                        MissingOf(name, round).empty();
    if (!begins) continue;
    round.running = true;
    ReadyLoad load{name,  round.order, round.request, round.deadline, round.memory_deadline,
                   {}, round.stated, round.digests};
    const auto known = known_.find(name);
    if (known != known_.end() && !known->second.holders.empty()) load.files = known->second.files;
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      if (!IsRankForm(round.request)) {
        load.request_digests[rank] = round.load_key;
      } else if (load.request_digests[rank] == 0 && known != known_.end()) {
        load.request_digests[rank] = known->second.request_digests[rank];
      }
    }
    ready.push_back(std::move(load));
  }
  std::sort(ready.begin(), ready.end(),
            [](const ReadyLoad& a, const ReadyLoad& b) { return a.order < b.order; });
  return ready;
}

std::vector<Rounds::Expired> Rounds::TakeExpired(Clock::time_point now) {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, round] : rounds_) {
    const bool refused = !round.refused_by.empty() && round.memory_deadline <= now;
    const bool ends = refused || round.deadline <= now || !round.cancelled.ok();
    if (!round.running && ends) names.push_back(name);
  }
  std::vector<Expired> expired;
  if (names.empty()) return expired;
  const std::vector<const Round*> stated = WhereStated();
  for (const std::string& name : names) expired.push_back(Seen(name, rounds_.at(name), stated));
  for (const std::string& name : names) rounds_.erase(name);
  ended_.NotifyAll();
  return expired;
}

std::vector<Rounds::Expired> Rounds::Waiting() const {
  MutexLock lock(mutex_);
  const std::vector<const Round*> stated = WhereStated();
  std::vector<Expired> waiting;
  for (const auto& [name, round] : rounds_) {
    if (!round.running) waiting.push_back(Seen(name, round, stated));
  }
  return waiting;
}

std::vector<std::string> Rounds::WaitingNames() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, round] : rounds_) {
    if (!round.running) names.push_back(name);
  }
  return names;
}

void Rounds::Ending(const std::string& name, bool failed) {
  MutexLock lock(mutex_);
  const auto at = rounds_.find(name);
  if (at == rounds_.end()) return;
  at->second.ending = true;
  ended_.NotifyAll();
  at->second.failing = failed;
}

void Rounds::WillFail(const std::string& name) {
  MutexLock lock(mutex_);
  const auto at = rounds_.find(name);
  if (at != rounds_.end() && !at->second.ending) at->second.failing = true;
}

bool Rounds::Cancel(const std::string& name, const absl::Status& why) {
  MutexLock lock(mutex_);
  const auto at = rounds_.find(name);
  if (at == rounds_.end() || at->second.ending || !at->second.cancelled.ok()) return false;
  at->second.cancelled = why;
  at->second.failing = true;
  return at->second.running && !at->second.touched;
}

absl::Status Rounds::Touch(const std::string& name) {
  MutexLock lock(mutex_);
  const auto at = rounds_.find(name);
  if (at == rounds_.end()) return absl::OkStatus();
  at->second.touched = at->second.cancelled.ok();
  return at->second.cancelled;
}

std::vector<std::string> Rounds::Overdue(Clock::time_point now) const {
  MutexLock lock(mutex_);
  std::vector<std::string> overdue;
  for (const auto& [name, round] : rounds_) {
    const bool still = round.running && !round.touched && !round.ending && round.cancelled.ok();
    if (still && round.deadline <= now) overdue.push_back(name);
  }
  return overdue;
}

absl::Status Rounds::Cancelled(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto at = rounds_.find(name);
  return at == rounds_.end() ? absl::OkStatus() : at->second.cancelled;
}

std::vector<std::string> Rounds::Names() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, round] : rounds_) names.push_back(name);
  return names;
}

void Rounds::Finished(const std::string& name, const LoadOutcome& outcome) {
  MutexLock lock(mutex_);
  ended_.NotifyAll();
  const auto at = rounds_.find(name);
  if (at == rounds_.end()) return;
  if (!outcome.lost.empty()) return PutBack(name, at->second, outcome.lost);
  if (!outcome.refused_by.empty()) return WaitForMemory(at->second, outcome);
  if (!outcome.holders.empty()) NoteHolders(name, at->second, outcome);
  const Round ended = std::move(at->second);
  rounds_.erase(at);
  if (!outcome.status.ok() || ended.late.empty()) return;
  const Round::Late& first = ended.late.front();
  Round next = NewRound(first.proposal, first.deadline, first.memory_deadline);
  next.late = ended.late;
  AddLate(next);
  rounds_.emplace(name, std::move(next));
}

void Rounds::PutBack(const std::string& name, Round& round, const std::set<uint32_t>& lost) {
  if (const auto known = known_.find(name); known != known_.end()) {
    for (const uint32_t rank : lost) known->second.holders.erase(rank);
  }
  // That it was out of date goes with its runner: it waits, and begins anew. Not that it was given up.
  round.running = round.touched = false;
  round.failing = !round.cancelled.ok();
  AddLate(round);
}

void Rounds::WaitForMemory(Round& round, const LoadOutcome& outcome) {
  round.running = round.touched = false;
  round.failing = !round.cancelled.ok();
  round.refused_by = outcome.refused_by;
  round.refused = outcome.refused;
  // What a rank lacks may be no memory of the budget: then it seems to have room all the time.
  round.pause = std::clamp(2 * round.pause, kFirstPause, kLongestPause);
  round.not_before = outcome.refused_at + round.pause;
  AddLate(round);
}

void Rounds::NoteRoom(uint32_t rank, const std::vector<std::string>& names,
                      Clock::time_point now) {
  MutexLock lock(mutex_);
  for (const std::string& name : names) {
    const auto at = rounds_.find(name);
    if (at == rounds_.end() || now < at->second.not_before) continue;
    at->second.refused_by.erase(rank);
  }
}

void Rounds::NoteHolders(const std::string& name, const Round& round,
                         const LoadOutcome& outcome) {
  KnownCheckpoint& known = known_[name];
  known.name = name;
  known.load_key = round.load_key;
  known.files = outcome.files;
  known.request_digests.resize(world_size_, 0);
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    if (!IsRankForm(round.request)) {
      known.request_digests[rank] = round.load_key;
    } else if (round.digests[rank] != 0) {
      known.request_digests[rank] = round.digests[rank];
    }
  }
  known.holders.insert(outcome.holders.begin(), outcome.holders.end());
  known.order = ++noted_;
}

void Rounds::SetResidents(uint32_t rank, uint64_t epoch,
                          const std::vector<ResidentCheckpoint>& residents) {
  MutexLock lock(mutex_);
  if (epoch < told_[rank]) return;
  told_[rank] = epoch;
  // It has left, or another process has come: what that has room for shows when it is asked.
  for (auto& [name, round] : rounds_) round.refused_by.erase(rank);
  for (auto at = known_.begin(); at != known_.end();) {
    at->second.holders.erase(rank);
    at = at->second.holders.empty() ? known_.erase(at) : std::next(at);
  }
  for (const ResidentCheckpoint& resident : residents) {
    if (resident.request_digests.size() != world_size_) continue;
    KnownCheckpoint& known = known_[resident.name];
    if (known.name.empty()) {
      known = {resident.name, resident.load_key, resident.files, resident.request_digests, {},
               ++noted_};
    }
    if (known.load_key == resident.load_key && known.request_digests == resident.request_digests) {
      known.holders.insert(rank);
    }
  }
}

void Rounds::ForgetOldest(const std::set<std::string>& resident) {
  MutexLock lock(mutex_);
  while (known_.size() > kMostKnown) {
    auto oldest = known_.end();
    for (auto at = known_.begin(); at != known_.end(); ++at) {
      if (resident.count(at->first) > 0 || rounds_.count(at->first) > 0) continue;
      if (oldest == known_.end() || at->second.order < oldest->second.order) oldest = at;
    }
    if (oldest == known_.end()) return;
    known_.erase(oldest);
  }
}

}  // namespace ckptd
