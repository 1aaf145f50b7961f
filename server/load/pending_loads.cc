#include "server/load/pending_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

// A job that is not known may be the other one.
bool AreOfTwoJobs(const LoadRequest& a, const LoadRequest& b) {
  return !a.job.empty() && !b.job.empty() && a.job != b.job;
}

// Ranks show their shards one after the other, and then it is about to be known.
bool IsPublished(LoadState state) {
  return state == LoadState::kPublishing || state == LoadState::kActive;
}

}  // namespace

std::optional<std::vector<SourceFile>> PendingLoads::FilesToCheck(const Proposal& proposal) const {
  MutexLock lock(mutex_);
  const KnownCheckpoint* known = known_.Find(proposal);
  if (known == nullptr) return std::nullopt;
  return known->files;
}

bool PendingLoads::IsNew(const Proposal& proposal) const {
  MutexLock lock(mutex_);
  return FindOpen(proposal) == nullptr && known_.Find(proposal) == nullptr;
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
  pending.layouts.resize(world_size_);
  pending.digests.resize(world_size_, 0);
  pending.proposal_ids.resize(world_size_);
  pending.state = std::make_shared<LoadStateMachine>(LoadState::kGathering, [this] {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  });
  return pending;
}

void PendingLoads::PendingLoad::Add(const Proposal& proposal) {
  const uint32_t rank = proposal.rank;
  digests[rank] = proposal.digest;
  proposal_ids[rank] = proposal.request.proposal_id;
  if (!IsRankForm(proposal.request)) return;
  layouts[rank] = std::get<std::shared_ptr<const RankLayout>>(proposal.request.layout);
}

void PendingLoads::PendingLoad::AddLate() {
  for (const Late& one : late) Add(one.proposal);
  late.clear();
}

bool PendingLoads::IsOutOfDate(const PendingLoad& pending) const {
  return pending.epoch != 0 && pending.epoch < epoch_;
}

bool PendingLoads::WillFail(const PendingLoad& pending) const {
  const LoadState state = pending.state->state();
  if (IsPublished(state)) return false;
  return IsFinal(state) || IsOutOfDate(pending);
}

bool PendingLoads::Accepts(const std::string& name, const PendingLoad& pending,
                           const Proposal& proposal) const {
  if (pending.load_key != proposal.load_key || WillFail(pending)) return false;
  // Their layouts may be equal, and yet one job's ranks want what the other's do not; and what
  // their clients pass may be other files.
  const bool differ = AreOfTwoJobs(pending.request, proposal.request);
  const bool passed = pending.request.passed || proposal.request.passed;
  if (differ && (passed || IsRankForm(proposal.request))) return false;
  if (!IsRankForm(proposal.request)) return true;
  const uint32_t rank = proposal.rank;
  // A rank that has proposed something else already begins a later load.
  if (pending.digests[rank] != 0) return pending.digests[rank] == proposal.digest;
  if (pending.waits()) return true;
  const KnownCheckpoint* known = known_.Get(name);
  return known != nullptr && known->request_digests[rank] == proposal.digest;
}

const std::string* PendingLoads::FindOpen(const Proposal& proposal) const {
  const std::string* found = nullptr;
  uint64_t newest = 0;
  for (const auto& [name, pending] : pending_) {
    if (pending.order < newest || !Accepts(name, pending, proposal)) continue;
    found = &name;
    newest = pending.order;
  }
  return found;
}

bool PendingLoads::IsFinishing(const Proposal& proposal) const {
  bool accepted = false;
  for (const auto& [name, pending] : pending_) {
    if (!Accepts(name, pending, proposal)) continue;
    if (IsPublished(pending.state->state())) return true;
    accepted = true;
  }
  if (accepted) return false;
  // Under another name it would wait for ranks that hold theirs and propose nothing.
  const KnownCheckpoint* known = known_.Find(proposal);
  const auto held = known == nullptr ? pending_.end() : pending_.find(known->name);
  if (held == pending_.end()) return false;
  return WillFail(held->second) || held->second.state->state() == LoadState::kActive;
}

bool PendingLoads::WaitWhileFinishing(const Proposal& proposal, Deadline deadline) const {
  MutexLock lock(mutex_);
  return changed_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !IsFinishing(proposal);
  });
}

bool PendingLoads::WaitWhilePublishing(const std::string& name, Deadline deadline) const {
  MutexLock lock(mutex_);
  return changed_.WaitUntil(mutex_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto at = pending_.find(name);
    return at == pending_.end() || !IsPublished(at->second.state->state());
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

absl::StatusOr<std::optional<std::string>> PendingLoads::Begin(const Proposal& proposal,
                                                               bool reuse, Deadline deadline,
                                                               Deadline memory_deadline) {
  const KnownCheckpoint* known = known_.Find(proposal);
  if (known != nullptr && !reuse) {
    known_.Erase(std::string(known->name));
    // Another one of the same name and layout may be of the files as they are.
    if (known_.Find(proposal) != nullptr) return std::optional<std::string>();
    known = nullptr;
  }
  CKPTD_RETURN_IF_ERROR(CheckRoom(proposal));
  const bool join = known != nullptr && pending_.count(known->name) == 0;
  std::string name = join ? known->name : "checkpoints/" + RandomHex(8);
  pending_.emplace(name, NewPendingLoad(proposal, deadline, memory_deadline));
  return std::optional<std::string>(std::move(name));
}

absl::StatusOr<std::optional<std::string>> PendingLoads::Propose(const Proposal& proposal,
                                                                 bool reuse,
                                                                 Clock::time_point now) {
  const Deadline deadline = now + proposal.request.timeout;
  const Deadline memory_deadline = now + proposal.request.wait_memory;
  MutexLock lock(mutex_);
  if (IsFinishing(proposal)) return std::optional<std::string>();
  std::optional<std::string> name;
  if (const std::string* open = FindOpen(proposal); open != nullptr) {
    name = *open;
  } else {
    CKPTD_ASSIGN_OR_RETURN(name, Begin(proposal, reuse, deadline, memory_deadline));
    if (!name.has_value()) return name;
  }
  PendingLoad& pending = pending_.at(*name);
  if (pending.waits()) {
    // A client that asked before, and has given up since, does not end it for this one.
    pending.deadline = std::max(pending.deadline, deadline);
    pending.memory_deadline = std::max(pending.memory_deadline, memory_deadline);
    if (pending.request.job.empty()) pending.request.job = proposal.request.job;
    pending.Add(proposal);
  } else if (IsRankForm(proposal.request) && pending.digests[proposal.rank] == 0) {
    pending.late.push_back({proposal, deadline, memory_deadline});
  }
  return name;
}

void PendingLoads::Withdraw(uint32_t rank, const std::vector<std::string>& proposals,
                            Clock::time_point now) {
  MutexLock lock(mutex_);
  for (auto& [name, pending] : pending_) {
    const std::string& id = pending.proposal_ids[rank];
    if (!pending.waits() || id.empty() || !IsRankForm(pending.request)) continue;
    if (std::find(proposals.begin(), proposals.end(), id) == proposals.end()) continue;
    pending.digests[rank] = 0;
    pending.layouts[rank] = nullptr;
    pending.proposal_ids[rank].clear();
    const auto proposed = [](uint64_t digest) { return digest != 0; };
    if (std::none_of(pending.digests.begin(), pending.digests.end(), proposed)) {
      pending.deadline = now;
    }
  }
}

std::vector<int32_t> PendingLoads::MissingOf(const std::string& name,
                                             const PendingLoad& pending) const {
  std::vector<int32_t> missing;
  if (!IsRankForm(pending.request)) return missing;
  const KnownCheckpoint* known = known_.Get(name);
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    const bool held = known != nullptr && known->HeldBy(rank);
    if (pending.digests[rank] == 0 && !held) missing.push_back(static_cast<int32_t>(rank));
  }
  return missing;
}

ReadyLoad PendingLoads::MakeReady(const std::string& name, const PendingLoad& pending) const {
  ReadyLoad load{name,
                 pending.order,
                 pending.request,
                 pending.deadline,
                 pending.memory_deadline,
                 {},
                 pending.layouts,
                 pending.digests,
                 pending.state};
  const KnownCheckpoint* known = known_.Get(name);
  if (known != nullptr && !known->holders.empty()) load.files = known->files;
  for (uint32_t rank = 0; rank < world_size_; ++rank) {
    if (!IsRankForm(pending.request)) {
      load.request_digests[rank] = pending.load_key;
    } else if (load.request_digests[rank] == 0 && known != nullptr) {
      load.request_digests[rank] = known->request_digests[rank];
    }
  }
  return load;
}

std::vector<ReadyLoad> PendingLoads::TakeReady() {
  MutexLock lock(mutex_);
  std::vector<ReadyLoad> ready;
  for (const auto& [name, pending] : pending_) {
    if (pending.state->state() != LoadState::kGathering || !MissingOf(name, pending).empty()) {
      continue;
    }
    if (pending.state->Take()) ready.push_back(MakeReady(name, pending));
  }
  std::sort(ready.begin(), ready.end(),
            [](const ReadyLoad& a, const ReadyLoad& b) { return a.order < b.order; });
  return ready;
}

void PendingLoads::NoteStarted(const std::string& name, uint64_t epoch) {
  MutexLock lock(mutex_);
  if (const auto at = pending_.find(name); at != pending_.end()) at->second.epoch = epoch;
}

void PendingLoads::NoteEpoch(uint64_t epoch) {
  MutexLock lock(mutex_);
  epoch_ = std::max(epoch_, epoch);
}

bool PendingLoads::IsOutOfDate(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  return at != pending_.end() && IsOutOfDate(at->second);
}

std::vector<PendingLoads::Waiting> PendingLoads::TakeExpired(Clock::time_point now) {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) {
    const bool refused = !pending.refused_by.empty() && pending.memory_deadline <= now;
    const bool ends = refused || pending.deadline <= now || !pending.state->cancelled().ok();
    if (pending.waits() && ends) names.push_back(name);
  }
  std::vector<Waiting> expired;
  if (names.empty()) return expired;
  const std::vector<const PendingLoad*> by_rank = WaitingByRank();
  for (const std::string& name : names) {
    expired.push_back(Snapshot(name, pending_.at(name), by_rank));
  }
  for (const std::string& name : names) pending_.erase(name);
  changed_.NotifyAll();
  return expired;
}

std::vector<PendingLoads::Waiting> PendingLoads::ListWaiting() const {
  MutexLock lock(mutex_);
  const std::vector<const PendingLoad*> by_rank = WaitingByRank();
  std::vector<Waiting> waiting;
  for (const auto& [name, pending] : pending_) {
    if (pending.waits()) waiting.push_back(Snapshot(name, pending, by_rank));
  }
  return waiting;
}

std::vector<std::string> PendingLoads::WaitingNames() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) {
    if (pending.waits()) names.push_back(name);
  }
  return names;
}

bool PendingLoads::Cancel(const std::string& name, const absl::Status& why, bool stalls) {
  MutexLock lock(mutex_);
  const auto at = pending_.find(name);
  if (at == pending_.end()) return false;
  const std::optional<LoadState> from = at->second.state->Cancel(why);
  if (!from.has_value() || IsWaiting(*from)) return false;
  return *from < LoadState::kAllocating || (stalls && *from == LoadState::kTransferring);
}

std::vector<std::string> PendingLoads::Overdue(
    Clock::time_point now, const std::function<bool(const std::string& name)>& stalls) const {
  MutexLock lock(mutex_);
  std::vector<std::string> overdue;
  for (const auto& [name, pending] : pending_) {
    const LoadState state = pending.state->state();
    if (IsWaiting(state) || state >= LoadState::kPublishing || pending.deadline > now) continue;
    const bool early = state < LoadState::kAllocating;
    if (early || (stalls != nullptr && stalls(name))) overdue.push_back(name);
  }
  return overdue;
}

std::vector<std::string> PendingLoads::Names() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) names.push_back(name);
  return names;
}

void PendingLoads::Finished(const std::string& name, const LoadOutcome& outcome) {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
  const auto at = pending_.find(name);
  if (at == pending_.end()) return;
  PendingLoad& pending = at->second;
  if (!outcome.lost.empty()) {
    known_.DropHolders(name, outcome.lost);
    return pending.Requeue(LoadState::kGathering);
  }
  if (!outcome.refused_by.empty()) return WaitForMemory(pending, outcome);
  if (!outcome.holders.empty()) {
    if (!IsRankForm(pending.request)) pending.digests.assign(world_size_, pending.load_key);
    known_.Add(name, pending.load_key, pending.digests, outcome.files, outcome.holders);
  }
  const PendingLoad ended = std::move(pending);
  pending_.erase(at);
  if (!outcome.status.ok() || ended.late.empty()) return;
  const PendingLoad::Late& first = ended.late.front();
  PendingLoad next = NewPendingLoad(first.proposal, first.deadline, first.memory_deadline);
  next.late = ended.late;
  next.AddLate();
  pending_.emplace(name, std::move(next));
}

void PendingLoads::PendingLoad::Requeue(LoadState to) {
  epoch = 0;
  state->Requeue(to);
  AddLate();
}

void PendingLoads::WaitForMemory(PendingLoad& pending, const LoadOutcome& outcome) {
  pending.refused_by = outcome.refused_by;
  pending.refused = outcome.refused;
  // A rank may lack memory outside of the budget: then it seems to have room all the time.
  pending.pause = std::clamp(2 * pending.pause, timing::kFirstPause, timing::kLongestPause);
  pending.not_before = outcome.refused_at + pending.pause;
  pending.Requeue(LoadState::kWaitingForMemory);
}

void PendingLoads::NoteRoom(PendingLoad& pending, uint32_t rank) {
  if (pending.refused_by.erase(rank) == 0 || !pending.refused_by.empty()) return;
  pending.state->Requeue(LoadState::kGathering);
}

void PendingLoads::NoteRoom(uint32_t rank, const std::vector<std::string>& names,
                            Clock::time_point now) {
  MutexLock lock(mutex_);
  for (const std::string& name : names) {
    const auto at = pending_.find(name);
    if (at != pending_.end() && now >= at->second.not_before) NoteRoom(at->second, rank);
  }
}

void PendingLoads::SetResidents(uint32_t rank, uint64_t epoch,
                                const std::vector<ResidentCheckpoint>& residents) {
  MutexLock lock(mutex_);
  if (!known_.SetResidents(rank, epoch, residents)) return;
  // Another process has come there, or will come: it says itself what it has room for.
  for (auto& [name, pending] : pending_) NoteRoom(pending, rank);
}

void PendingLoads::ForgetOldest(const std::set<std::string>& resident) {
  MutexLock lock(mutex_);
  known_.Trim(kMostKnown, [&](const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return resident.count(name) > 0 || pending_.count(name) > 0;
  });
}

}  // namespace ckptd
