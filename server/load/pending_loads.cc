#include "server/load/pending_loads.h"

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

// A job that is not known may be the other one.
bool AreOfTwoJobs(const LoadRequest& a, const LoadRequest& b) {
  return !a.job.empty() && !b.job.empty() && a.job != b.job;
}

}  // namespace

const KnownCheckpoint* PendingLoads::FindKnown(const Proposal& proposal) const {
  for (const auto& [name, known] : known_) {
    if (known.load_key != proposal.load_key || known.holders.empty()) continue;
    if (proposal.rank >= known.request_digests.size()) continue;
    if (known.request_digests[proposal.rank] == proposal.digest) return &known;
  }
  return nullptr;
}

std::optional<std::vector<SourceFile>> PendingLoads::FilesToCheck(const Proposal& proposal) const {
  MutexLock lock(mutex_);
  const KnownCheckpoint* known = FindKnown(proposal);
  if (known == nullptr) return std::nullopt;
  return known->files;
}

bool PendingLoads::IsNew(const Proposal& proposal) const {
  MutexLock lock(mutex_);
  for (const auto& [name, pending] : pending_) {
    if (Accepts(name, pending, proposal)) return false;
  }
  return FindKnown(proposal) == nullptr;
}

PendingLoads::PendingLoad PendingLoads::NewPendingLoad(const Proposal& proposal, Deadline deadline,
                               Deadline memory_deadline) {
  PendingLoad pending;
  pending.order = ++begun_;
  pending.begun_by = proposal.rank;
  pending.request = proposal.request;
  pending.load_key = proposal.load_key;
  pending.deadline = deadline;
  pending.memory_deadline = memory_deadline;
  pending.stated.resize(world_size_);
  pending.digests.resize(world_size_, 0);
  pending.statements.resize(world_size_);
  return pending;
}

void PendingLoads::Add(PendingLoad& pending, const Proposal& proposal) {
  const uint32_t rank = proposal.rank;
  pending.digests[rank] = proposal.digest;
  pending.statements[rank] = proposal.request.statement;
  if (!IsRankForm(proposal.request)) return;
  pending.stated[rank] = std::get<std::shared_ptr<const RankLayout>>(proposal.request.layout);
}

void PendingLoads::AddLate(PendingLoad& pending) {
  for (const PendingLoad::Late& late : pending.late) Add(pending, late.proposal);
  pending.late.clear();
}

bool PendingLoads::Accepts(const std::string& name, const PendingLoad& pending, const Proposal& proposal) const {
  if (pending.load_key != proposal.load_key || pending.doomed) return false;
  if (!IsRankForm(proposal.request)) return true;
  // What they state may be alike, and yet one job's ranks want what the other's do not.
  if (AreOfTwoJobs(pending.request, proposal.request)) return false;
  const uint32_t rank = proposal.rank;
  // A rank that already stated something else belongs to a later pending load.
  if (pending.digests[rank] != 0) return pending.digests[rank] == proposal.digest;
  if (!pending.running) return true;
  const auto known = known_.find(name);
  return known != known_.end() && known->second.request_digests[rank] == proposal.digest;
}

bool PendingLoads::IsFinishing(const Proposal& proposal) const {
  bool taken = false;
  for (const auto& [name, pending] : pending_) {
    if (!Accepts(name, pending, proposal)) continue;
    if (pending.finishing) return true;
    taken = true;
  }
  if (taken) return false;
  // Under another name it would wait for ranks that hold theirs and state nothing.
  const KnownCheckpoint* known = FindKnown(proposal);
  const auto held = known == nullptr ? pending_.end() : pending_.find(known->name);
  return held != pending_.end() && held->second.doomed;
}

bool PendingLoads::WaitWhileFinishing(const Proposal& proposal, Deadline deadline) const {
  MutexLock lock(mutex_);
  return ended_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !IsFinishing(proposal);
  });
}

absl::Status PendingLoads::CheckRoom(const Proposal& proposal) const {
  const auto own = static_cast<size_t>(
      std::count_if(pending_.begin(), pending_.end(),
                    [&](const auto& open) { return open.second.begun_by == proposal.rank; }));
  if (own < kMostOpenOfRank && pending_.size() < kMostOpen) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kTooManyLoads,
      fmt::format("loading {}: {} loads are open, {} of them begun by rank {}, and there may be {} "
                  "and {}; wait for one of them to end, or end it (`ckptctl list`, `ckptctl unload "
                  "--force`)",
                  proposal.request.source, pending_.size(), own, proposal.rank, kMostOpen,
                  kMostOpenOfRank),
      {{"rank", std::to_string(proposal.rank)}});
}

absl::StatusOr<std::optional<std::string>> PendingLoads::Propose(const Proposal& proposal, bool reuse,
                                                           Clock::time_point now) {
  const Deadline deadline = now + proposal.request.timeout;
  const Deadline memory_deadline = now + proposal.request.wait_memory;
  MutexLock lock(mutex_);
  if (IsFinishing(proposal)) return std::optional<std::string>();
  std::string name;
  uint64_t newest = 0;
  for (const auto& [open, pending] : pending_) {
    if (!Accepts(open, pending, proposal) || pending.order < newest) continue;
    // An older one may be of trainers that have ended since.
    name = open;
    newest = pending.order;
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
    const bool join = known != nullptr && pending_.count(known->name) == 0;
    name = join ? known->name : "checkpoints/" + RandomHex(8);
    pending_.emplace(name, NewPendingLoad(proposal, deadline, memory_deadline));
  }
  PendingLoad& pending = pending_.at(name);
  if (!pending.running) {
    // Whoever asked before, and has given up since, does not end it for this one.
    pending.deadline = std::max(pending.deadline, deadline);
    pending.memory_deadline = std::max(pending.memory_deadline, memory_deadline);
    if (pending.request.job.empty()) pending.request.job = proposal.request.job;
    Add(pending, proposal);
  } else if (IsRankForm(proposal.request) && pending.digests[proposal.rank] == 0) {
    pending.late.push_back({proposal, deadline, memory_deadline});
  }
  return name;
}

void PendingLoads::Withdraw(uint32_t rank, const std::vector<std::string>& statements,
                      Clock::time_point now) {
  MutexLock lock(mutex_);
  for (auto& [name, pending] : pending_) {
    const std::string& made = pending.statements[rank];
    if (pending.running || made.empty() || !IsRankForm(pending.request)) continue;
    if (std::find(statements.begin(), statements.end(), made) == statements.end()) continue;
    pending.digests[rank] = 0;
    pending.stated[rank] = nullptr;
    pending.statements[rank].clear();
    const auto stated = [](uint64_t digest) { return digest != 0; };
    if (std::none_of(pending.digests.begin(), pending.digests.end(), stated)) pending.deadline = now;
  }
}

std::vector<int32_t> PendingLoads::MissingOf(const std::string& name, const PendingLoad& pending) const {
  std::vector<int32_t> missing;
  if (!IsRankForm(pending.request)) return missing;
  const auto known = known_.find(name);
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    const bool held = known != known_.end() && known->second.holders.count(rank) > 0;
    if (pending.digests[rank] == 0 && !held) missing.push_back(static_cast<int32_t>(rank));
  }
  return missing;
}

std::vector<const PendingLoads::PendingLoad*> PendingLoads::WhereStated() const {
  std::vector<const PendingLoad*> stated(world_size_, nullptr);
  for (const auto& [name, open] : pending_) {
    if (open.running || !IsRankForm(open.request)) continue;
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      if (open.digests[rank] != 0) stated[rank] = &open;
    }
  }
  return stated;
}

PendingLoads::Expired PendingLoads::Snapshot(const std::string& name, const PendingLoad& pending,
                             const std::vector<const PendingLoad*>& stated) const {
  Expired out{name, MissingOf(name, pending), {}, pending.cancelled};
  if (!pending.refused_by.empty()) {
    out.refused = pending.refused;
    out.waiting.assign(pending.refused_by.begin(), pending.refused_by.end());
    return out;
  }
  out.elsewhere = DescribeConflict(pending, out.waiting, stated);
  return out;
}

// A rank that is waited for has not stated anything in that pending load, nor holds its checkpoint:
// whatever is found is another one.
std::string PendingLoads::DescribeConflict(const PendingLoad& pending, const std::vector<int32_t>& waiting,
                              const std::vector<const PendingLoad*>& stated) const {
  for (const int32_t rank : waiting) {
    const PendingLoad* const other = stated[static_cast<size_t>(rank)];
    if (other == nullptr) continue;
    const bool same = other->request.source == pending.request.source;
    return fmt::format("rank {} loads {}{}", rank, other->request.source,
                       same ? " with other options" : "");
  }
  for (const auto& [other, known] : known_) {
    if (known.load_key != pending.load_key) continue;
    const auto holds = [&holders = known.holders](int32_t rank) {
      return holders.count(static_cast<uint32_t>(rank)) > 0;
    };
    const auto rank = std::find_if(waiting.begin(), waiting.end(), holds);
    if (rank != waiting.end()) return fmt::format("rank {} holds its shard of {}", *rank, other);
  }
  return "";
}

std::vector<ReadyLoad> PendingLoads::TakeReady() {
  MutexLock lock(mutex_);
  std::vector<ReadyLoad> ready;
  for (auto& [name, pending] : pending_) {
    const bool begins = !pending.running && pending.cancelled.ok() && pending.refused_by.empty() &&
                        MissingOf(name, pending).empty();
    if (!begins) continue;
    pending.running = true;
    ReadyLoad load{name,  pending.order, pending.request, pending.deadline, pending.memory_deadline,
                   {}, pending.stated, pending.digests};
    const auto known = known_.find(name);
    if (known != known_.end() && !known->second.holders.empty()) load.files = known->second.files;
    for (uint32_t rank = 0; rank < world_size_; ++rank) {
      if (!IsRankForm(pending.request)) {
        load.request_digests[rank] = pending.load_key;
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

std::vector<PendingLoads::Expired> PendingLoads::TakeExpired(Clock::time_point now) {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) {
    const bool refused = !pending.refused_by.empty() && pending.memory_deadline <= now;
    const bool ends = refused || pending.deadline <= now || !pending.cancelled.ok();
    if (!pending.running && ends) names.push_back(name);
  }
  std::vector<Expired> expired;
  if (names.empty()) return expired;
  const std::vector<const PendingLoad*> stated = WhereStated();
  for (const std::string& name : names) expired.push_back(Snapshot(name, pending_.at(name), stated));
  for (const std::string& name : names) pending_.erase(name);
  ended_.NotifyAll();
  return expired;
}

std::vector<PendingLoads::Expired> PendingLoads::Waiting() const {
  MutexLock lock(mutex_);
  const std::vector<const PendingLoad*> stated = WhereStated();
  std::vector<Expired> waiting;
  for (const auto& [name, pending] : pending_) {
    if (!pending.running) waiting.push_back(Snapshot(name, pending, stated));
  }
  return waiting;
}

std::vector<std::string> PendingLoads::WaitingNames() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) {
    if (!pending.running) names.push_back(name);
  }
  return names;
}

void PendingLoads::MarkFinishing(const std::string& name, bool failed) {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  if (at == pending_.end()) return;
  at->second.finishing = true;
  ended_.NotifyAll();
  at->second.doomed = failed;
}

void PendingLoads::MarkDoomed(const std::string& name) {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  if (at != pending_.end() && !at->second.finishing) at->second.doomed = true;
}

bool PendingLoads::Cancel(const std::string& name, const absl::Status& why) {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  if (at == pending_.end() || at->second.finishing || !at->second.cancelled.ok()) return false;
  at->second.cancelled = why;
  at->second.doomed = true;
  return at->second.running && !at->second.allocation_started;
}

absl::Status PendingLoads::BeginAllocation(const std::string& name) {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  if (at == pending_.end()) return absl::OkStatus();
  at->second.allocation_started = at->second.cancelled.ok();
  return at->second.cancelled;
}

std::vector<std::string> PendingLoads::Overdue(Clock::time_point now) const {
  MutexLock lock(mutex_);
  std::vector<std::string> overdue;
  for (const auto& [name, pending] : pending_) {
    const bool still = pending.running && !pending.allocation_started && !pending.finishing && pending.cancelled.ok();
    if (still && pending.deadline <= now) overdue.push_back(name);
  }
  return overdue;
}

absl::Status PendingLoads::Cancelled(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  return at == pending_.end() ? absl::OkStatus() : at->second.cancelled;
}

std::vector<std::string> PendingLoads::Names() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) names.push_back(name);
  return names;
}

void PendingLoads::Finished(const std::string& name, const LoadOutcome& outcome) {
  MutexLock lock(mutex_);
  ended_.NotifyAll();
  const auto at = pending_.find(name);
  if (at == pending_.end()) return;
  if (!outcome.lost.empty()) return Requeue(name, at->second, outcome.lost);
  if (!outcome.refused_by.empty()) return WaitForMemory(at->second, outcome);
  if (!outcome.holders.empty()) NoteHolders(name, at->second, outcome);
  const PendingLoad ended = std::move(at->second);
  pending_.erase(at);
  if (!outcome.status.ok() || ended.late.empty()) return;
  const PendingLoad::Late& first = ended.late.front();
  PendingLoad next = NewPendingLoad(first.proposal, first.deadline, first.memory_deadline);
  next.late = ended.late;
  AddLate(next);
  pending_.emplace(name, std::move(next));
}

void PendingLoads::Requeue(const std::string& name, PendingLoad& pending, const std::set<uint32_t>& lost) {
  if (const auto known = known_.find(name); known != known_.end()) {
    for (const uint32_t rank : lost) known->second.holders.erase(rank);
  }
  // That it was out of date goes with its runner: it waits, and begins anew. Not that it was given up.
  pending.running = pending.allocation_started = false;
  pending.doomed = !pending.cancelled.ok();
  AddLate(pending);
}

void PendingLoads::WaitForMemory(PendingLoad& pending, const LoadOutcome& outcome) {
  pending.running = pending.allocation_started = false;
  pending.doomed = !pending.cancelled.ok();
  pending.refused_by = outcome.refused_by;
  pending.refused = outcome.refused;
  // What a rank lacks may be no memory of the budget: then it seems to have room all the time.
  pending.pause = std::clamp(2 * pending.pause, kFirstPause, kLongestPause);
  pending.not_before = outcome.refused_at + pending.pause;
  AddLate(pending);
}

void PendingLoads::NoteRoom(uint32_t rank, const std::vector<std::string>& names,
                      Clock::time_point now) {
  MutexLock lock(mutex_);
  for (const std::string& name : names) {
    const auto at = pending_.find(name);
    if (at == pending_.end() || now < at->second.not_before) continue;
    at->second.refused_by.erase(rank);
  }
}

void PendingLoads::NoteHolders(const std::string& name, const PendingLoad& pending,
                         const LoadOutcome& outcome) {
  KnownCheckpoint& known = known_[name];
  known.name = name;
  known.load_key = pending.load_key;
  known.files = outcome.files;
  known.request_digests.resize(world_size_, 0);
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    if (!IsRankForm(pending.request)) {
      known.request_digests[rank] = pending.load_key;
    } else if (pending.digests[rank] != 0) {
      known.request_digests[rank] = pending.digests[rank];
    }
  }
  known.holders.insert(outcome.holders.begin(), outcome.holders.end());
  known.order = ++noted_;
}

void PendingLoads::SetResidents(uint32_t rank, uint64_t epoch,
                          const std::vector<ResidentCheckpoint>& residents) {
  MutexLock lock(mutex_);
  if (epoch < told_[rank]) return;
  told_[rank] = epoch;
  // It has left, or another process has come: what that has room for shows when it is asked.
  for (auto& [name, pending] : pending_) pending.refused_by.erase(rank);
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

void PendingLoads::ForgetOldest(const std::set<std::string>& resident) {
  MutexLock lock(mutex_);
  while (known_.size() > kMostKnown) {
    auto oldest = known_.end();
    for (auto at = known_.begin(); at != known_.end(); ++at) {
      if (resident.count(at->first) > 0 || pending_.count(at->first) > 0) continue;
      if (oldest == known_.end() || at->second.order < oldest->second.order) oldest = at;
    }
    if (oldest == known_.end()) return;
    known_.erase(oldest);
  }
}

}  // namespace ckptd
