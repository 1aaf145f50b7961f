#include "server/load/coordinator.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/at_once.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "server/load/check_request.h"
#include "server/load/load_runner.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

// The progress of a load that waits for the one that the worker is busy with.
Progress Queued() {
  Progress progress;
  progress.stage = Stage::kQueued;
  return progress;
}

template <typename Rank>
std::string RankText(const std::vector<Rank>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// Why a load ends that has waited for memory for as long as it may.
absl::Status WhyRefused(const PendingLoads::Waiting& pending) {
  return MakeError(pending.refused.code(), ReasonOf(pending.refused),
                   fmt::format("loading {}: it has waited for memory of {}, in vain: {}", pending.name,
                               RankText(pending.ranks), MessageOf(pending.refused)),
                   FactsOf(pending.refused));
}

// Why a waiting load ends; `absent`: ranks that have no daemon.
absl::Status WhyExpired(const PendingLoads::Waiting& pending, const std::vector<uint32_t>& absent) {
  if (!pending.cancelled.ok()) return pending.cancelled;
  if (!pending.refused.ok()) return WhyRefused(pending);
  if (!absent.empty()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing,
                     fmt::format("loading {}: no daemon of {} has joined the group in time; start "
                                 "it, or look at its log",
                                 pending.name, RankText(absent)),
                     {{"ranks", fmt::format("{}", fmt::join(absent, ","))}});
  }
  if (pending.ranks.empty()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                     fmt::format("loading {}: the timeout passed before it began; load again with "
                                 "a longer timeout",
                                 pending.name));
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing,
                   fmt::format("loading {}: no trainer of {} has stated its tensors in time{}; "
                               "every rank must call the load with the same source and options, "
                               "and one that finds its own still resident states nothing: unload "
                               "it there",
                               pending.name, RankText(pending.ranks),
                               pending.conflict.empty() ? "" : ": " + pending.conflict),
                   {{"ranks", fmt::format("{}", fmt::join(pending.ranks, ","))}});
}

}  // namespace

Coordinator::Coordinator(Parts parts)
    : parts_(std::move(parts)),
      catalog_progress_(parts_.catalog),
      observers_(AllObservers()),
      pending_(parts_.membership.world_size()),
      participants_(parts_.membership.world_size()),
      holdings_(parts_.membership) {
  // What an earlier process of this rank has left, as members tell of theirs when they join.
  pending_.SetResidents(0, parts_.membership.epoch(), parts_.catalog.Residents());
  ticker_ = std::thread([this] { Loop(); });
}

std::vector<LoadObserver*> Coordinator::AllObservers() {
  std::vector<LoadObserver*> all = {&catalog_progress_, &log_};
  all.insert(all.end(), parts_.observers.begin(), parts_.observers.end());
  return all;
}

Coordinator::~Coordinator() {
  Stop();
  ticker_.join();
  // Loads that were posted use this object; stopping ends them soon.
  parts_.load_worker.WaitUntilIdle();
}

void Coordinator::Stop() {
  stopping_ = true;
  MutexLock lock(mutex_);
  wake_ = true;
  changed_.NotifyAll();
}

absl::StatusOr<bool> Coordinator::CanReuse(const Proposal& proposal) {
  const auto files = pending_.FilesToCheck(proposal);
  if (!files.has_value()) return CheckSource(proposal);
  const absl::Status status = parts_.lookups.CheckFiles(
      proposal.request.source, *files, Clock::now() + timing::kFileCheck,
      parts_.reading.AccessFor(proposal.request));
  if (!IsDefinitive(status) || IsDenied(status)) return status;
  return status.ok();
}

absl::StatusOr<bool> Coordinator::CheckSource(const Proposal& proposal) {
  // A load that waits for others would say what is wrong with its path when they have come.
  const bool waits = IsRankForm(proposal.request) || !parts_.membership.MissingRanks().empty();
  if (!waits || !pending_.IsNew(proposal)) return true;
  // Rank 0's trainer, whose files are read, may be about to pass them, too.
  if (proposal.request.passed && proposal.rank != 0) return true;
  const absl::Status recognised = parts_.lookups.CheckFiles(
      proposal.request.source, {}, Clock::now() + timing::kRecognise,
      parts_.reading.AccessFor(proposal.request));
  if (recognised.ok() || !IsDefinitive(recognised)) return true;
  // Storage that fails now may answer by then.
  if (absl::IsUnavailable(recognised)) return true;
  return recognised;
}

absl::StatusOr<std::string> Coordinator::ProposeForMember(uint32_t rank, LoadRequest request) {
  CKPTD_RETURN_IF_ERROR(CheckRequest(request, rank, parts_.membership.world_size()));
  return Propose(rank, std::move(request));
}

absl::StatusOr<std::string> Coordinator::Propose(uint32_t rank, const IdentifiedRequest& asked) {
  CKPTD_RETURN_IF_ERROR(parts_.stalls.Check("loading", asked.request.source));
  const Proposal proposal(rank, asked);
  const Deadline deadline = Clock::now() + timing::kFinishingLoad;
  pending_.NoteEpoch(parts_.membership.epoch());
  std::optional<std::string> name;
  uint64_t since = 0;
  while (!name.has_value()) {
    if (!pending_.WaitWhileFinishing(proposal, deadline)) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                       fmt::format("loading {}: a load of it is about to end and has not ended in "
                                   "{} s (`ckptctl list` shows it); try again",
                                   asked.request.source, timing::kFinishingLoad.count()));
    }
    CKPTD_ASSIGN_OR_RETURN(const bool reuse, CanReuse(proposal));
    since = parts_.catalog.Tick();
    CKPTD_ASSIGN_OR_RETURN(name, pending_.Propose(proposal, reuse, Clock::now()));
  }
  if (rank == 0) parts_.catalog.Begin(*name, asked, since);
  WakeForHeartbeat();
  return *name;
}

absl::Status Coordinator::CancelFor(uint32_t rank, const std::string& name) {
  const uint32_t world_size = parts_.membership.world_size();
  if (rank >= world_size) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongRank,
                     fmt::format("cancelling the load of {}: rank {} asks for it, this group has "
                                 "ranks 0 to {}",
                                 name, rank, world_size - 1));
  }
  Cancel(name, MakeError(absl::StatusCode::kAborted, reason::kLoadCancelled,
                         fmt::format("loading {}: it was unloaded at rank {} while it was loading; "
                                     "load again, if it is wanted",
                                     name, rank),
                         {{"checkpoint", name}, {"rank", std::to_string(rank)}}));
  WakeForHeartbeat();
  return absl::OkStatus();
}

bool Coordinator::IsOutOfDate(const std::string& name) {
  pending_.NoteEpoch(parts_.membership.epoch());
  return pending_.IsOutOfDate(name);
}

absl::StatusOr<JoinReply> Coordinator::Join(const MemberIdentity& identity,
                                            const std::vector<ResidentCheckpoint>& residents) {
  const uint64_t before = parts_.membership.epoch();
  CKPTD_ASSIGN_OR_RETURN(JoinReply reply, parts_.membership.Join(identity));
  if (reply.epoch != before) {
    pending_.SetResidents(identity.rank, reply.epoch, residents);
    participants_.Forget(identity.rank, Clock::now());
    std::set<std::string> held;
    for (const ResidentCheckpoint& resident : residents) held.insert(resident.name);
    holdings_.Set(identity.rank, std::move(held));
  }
  WakeForHeartbeat();
  return reply;
}

absl::StatusOr<HeartbeatReply> Coordinator::Heartbeat(const HeartbeatCall& call) {
  CKPTD_ASSIGN_OR_RETURN(HeartbeatReply reply,
                         parts_.membership.Heartbeat(call.rank, call.incarnation));
  pending_.Withdraw(call.rank, call.abandoned, Clock::now());
  pending_.NoteRoom(call.rank, call.has_room, Clock::now());
  holdings_.Set(call.rank, call.held);
  reply.residences = holdings_.Count(call.rank, Loading());
  reply.verdicts = participants_.Update(call.rank, call.participants, Clock::now());
  CancelEnded();
  if (reply.epoch != call.members_epoch) {
    reply.members = parts_.membership.ChangedSince(call.members_epoch);
  }
  if (call.reading.has_value()) {
    MutexLock lock(mutex_);
    const auto runner = running_.find(call.reading->name);
    if (runner != running_.end()) runner->second->NoteReading(call.rank, *call.reading);
  }
  for (const CheckpointInfo& info : parts_.catalog.List()) {
    if (info.state == CheckpointState::kLoading) reply.loads.emplace_back(info.name, info.progress);
  }
  for (auto& load : Gathering()) reply.loads.push_back(std::move(load));
  // Complete, so that a member can tell which of its loads nobody runs any more:
  // those that this rank does not see before it prepares them, too.
  std::set<std::string> told;
  for (const auto& [name, progress] : reply.loads) told.insert(name);
  std::vector<std::string> names = pending_.Names();
  {
    MutexLock lock(mutex_);
    names.insert(names.end(), being_told_.begin(), being_told_.end());
  }
  for (const std::string& name : names) {
    if (told.insert(name).second) reply.loads.emplace_back(name, Queued());
  }
  return reply;
}

void Coordinator::Loop() {
  while (!stopping_) {
    {
      MutexLock lock(mutex_);
      changed_.WaitUntil(mutex_, Clock::now() + timing::kCoordinatorTick,
                         [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return wake_; });
      wake_ = false;
    }
    Tick();
  }
}

void Coordinator::Tick() {
  parts_.membership.DropSilent();
  ForgetDeparted();
  TellOfParticipants();
  pending_.Withdraw(0, parts_.catalog.watchers().ReapAbandoned(Clock::now()), Clock::now());
  pending_.EndConflicts(Clock::now(), [this](uint32_t rank, const LoadRequest& request) {
    return participants_.JobsOf(rank, request.source, UserOf(request.guest));
  });
  NoteOwn();
  FailExpired();
  FailOverdue();
  PostReady();
  ShowWaiting();
  FailForgotten();
}

// As each member does for itself.
void Coordinator::FailForgotten() {
  const uint64_t since = parts_.catalog.Tick();
  parts_.catalog.FailForgotten(Loading(), since);
}

std::set<std::string> Coordinator::Loading() const {
  const std::vector<std::string> names = pending_.Names();
  return {names.begin(), names.end()};
}

void Coordinator::NoteOwn() {
  pending_.NoteRoom(0, parts_.catalog.eviction().MakeRoomForWaiting(), Clock::now());
  holdings_.Set(0, parts_.catalog.ActiveNames());
  for (const auto& [name, ranks] : holdings_.Count(0, Loading())) {
    parts_.catalog.NoteResidence(name, ranks);
  }
}

void Coordinator::ForgetDeparted() {
  // Before its members: who joins meanwhile has told what it holds in a later one.
  const uint64_t epoch = parts_.membership.epoch();
  if (std::exchange(present_epoch_, epoch) == epoch) return;
  const MembershipDiff::Members now = parts_.membership.Incarnations();
  for (const auto& departed : present_.Update(now)) {
    if (now.count(departed.first) == 0) {
      pending_.SetResidents(departed.first, epoch, {});
      participants_.Forget(departed.first, Clock::now());
      holdings_.Set(departed.first, {});
    }
    parts_.load_worker.Post(
        [this, departed] { parts_.peers.memory.Forget(departed.first, departed.second); });
  }
}

void Coordinator::TellOfParticipants() {
  if (parts_.participants == nullptr) return;
  const std::vector<Participant> all = parts_.participants->Snapshot(Clock::now());
  const std::vector<Verdict> verdicts = participants_.Update(0, all, Clock::now());
  CancelEnded();  // before its client goes on
  parts_.participants->NoteDelivered(all, verdicts);
}

void Coordinator::CancelEnded() {
  const std::vector<GroupParticipants::Ended> ended = participants_.TakeEnded();
  for (const auto& [sources, why, guest] : ended) {
    for (const std::string& source : sources) pending_.CancelWaiting(source, why, guest);
  }
  if (!ended.empty()) WakeForHeartbeat();
}

std::set<uint32_t> Coordinator::FindMissing(const std::string& name) {
  pending_.WaitWhilePublishing(name, Clock::now() + timing::kHoldsCall);
  return holdings_.FindMissing(name);
}

void Coordinator::WakeForHeartbeat() {
  MutexLock lock(mutex_);
  wake_ = true;
  changed_.NotifyAll();
}

void Coordinator::PostReady() {
  if (!parts_.membership.MissingRanks().empty()) return;
  for (ReadyLoad& load : pending_.TakeReady()) {
    observers_.OnProgress(load.name, Queued());
    parts_.load_worker.Post([this, load = std::move(load)] { RunLoad(load); });
  }
}

LoadOutcome Coordinator::RunStages(const ReadyLoad& load) {
  if (const absl::Status stalled = parts_.stalls.Check("loading", load.request.source);
      !stalled.ok()) {
    LoadOutcome outcome;
    outcome.status = stalled;
    load.state->Fail();
    return outcome;
  }
  const auto session = parts_.membership.CurrentSession();
  if (!session.has_value()) {
    LoadOutcome outcome;
    outcome.status = MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                               fmt::format("loading {}: {} left the group before the load began; "
                                           "load again",
                                           load.request.source,
                                           RankText(parts_.membership.MissingRanks())));
    load.state->Fail();
    return outcome;
  }
  pending_.NoteStarted(load.name, session->epoch);
  LoadRunner runner({parts_.catalog, parts_.membership, parts_.peers, stopping_, parts_.reading,
                     parts_.reader, &observers_, parts_.leases, &parts_.load_worker,
                     &parts_.stalls},
                    load, *session);
  {
    MutexLock lock(mutex_);
    running_[load.name] = &runner;
  }
  LoadOutcome outcome = runner.Run();
  {
    MutexLock lock(mutex_);
    running_.erase(load.name);
  }
  if (IsFinal(load.state->state())) {
    observers_.OnEnded(load.name, outcome.status, runner.progress());
  }
  return outcome;
}

void Coordinator::RunLoad(const ReadyLoad& load) {
  const LoadOutcome outcome = RunStages(load);
  // The runner has told the ranks that it began with; one that was restarted
  // meanwhile may have joined the pending load as well.
  if (!outcome.status.ok()) AbortEverywhere(load.name, outcome.status);
  holdings_.Add(load.name, outcome.holders);
  pending_.Finished(load.name, outcome);
  pending_.ForgetOldest(parts_.catalog.ActiveNames());
  for (const uint32_t rank : outcome.lost) {
    Log(LogLevel::kInfo, "{}: rank {} holds its shard no longer; waiting for its trainer",
        load.name, rank);
  }
}

void Coordinator::FailExpired() {
  const std::vector<PendingLoads::Waiting> expired = pending_.TakeExpired(Clock::now());
  if (expired.empty()) return;
  {
    MutexLock lock(mutex_);
    for (const PendingLoads::Waiting& pending : expired) being_told_.insert(pending.name);
  }
  for (const PendingLoads::Waiting& pending : expired) {
    const absl::Status why = WhyExpired(pending, parts_.membership.MissingRanks());
    AbortEverywhere(pending.name, why);
    observers_.OnEnded(pending.name, why, Progress());
  }
  MutexLock lock(mutex_);
  being_told_.clear();
}

// A runner that waits for storage cannot say that its time is over.
void Coordinator::FailOverdue() {
  const auto stalls = [this](const std::string& name) { return StandsStill(name); };
  for (const std::string& name : pending_.Overdue(Clock::now() - timing::kOverdue, stalls)) {
    const auto info = parts_.catalog.Get(name);
    const std::string source = info.ok() ? info->source : name;
    absl::Status why =
        MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                  fmt::format("loading {}: the timeout passed while {}", source, WhatHolds(name)));
    const auto stalled = StalledIn(name);
    if (stalled.has_value()) why = StorageStalled("loading " + source, *stalled);
    Cancel(name, why);
  }
}

// What keeps a load that has been taken to run from going on.
std::string Coordinator::WhatHolds(const std::string& name) const {
  MutexLock lock(mutex_);
  if (const auto at = running_.find(name); at != running_.end()) {
    return at->second->watch().left_behind()
               ? "it waited for loads that had passed it while its storage stood still; load again"
               : "its files were opened; does their storage answer?";
  }
  for (const auto& [other, runner] : running_) {
    if (runner->watch().left_behind()) continue;  // nobody waits for that one
    return fmt::format("it waited for the load of {}; load again when that has ended, or unload it "
                       "with --force",
                       runner->source());
  }
  return "it waited for its turn; load again with a longer one";
}

std::optional<StorageWatch::Stalled> Coordinator::StalledIn(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto runner = running_.find(name);
  if (runner == running_.end() || !runner->second->only_reads()) return std::nullopt;
  return runner->second->watch().Oldest(timing::kOverdue);
}

bool Coordinator::StandsStill(const std::string& name) const {
  if (StalledIn(name).has_value()) return true;
  MutexLock lock(mutex_);
  const auto runner = running_.find(name);
  return runner != running_.end() && runner->second->only_reads() &&
         runner->second->watch().left_behind();
}

// All ranks hear at once of one that will not begin to allocate on them.
void Coordinator::Cancel(const std::string& name, const absl::Status& why) {
  const bool stalls = StandsStill(name);
  {
    MutexLock lock(mutex_);
    const auto runner = running_.find(name);
    const bool only_reads = runner != running_.end() && runner->second->only_reads();
    if (only_reads) runner->second->watch().LeaveBehind();
  }
  if (pending_.Cancel(name, why, stalls)) AbortEverywhere(name, why);
}

std::vector<std::pair<std::string, Progress>> Coordinator::Gathering() const {
  std::vector<std::pair<std::string, Progress>> loads;
  Progress progress;
  progress.stage = Stage::kGathering;
  const std::vector<uint32_t> absent = parts_.membership.MissingRanks();
  if (!absent.empty()) {
    progress.waiting_ranks.assign(absent.begin(), absent.end());
    for (std::string& name : pending_.WaitingNames()) loads.emplace_back(std::move(name), progress);
    return loads;
  }
  for (PendingLoads::Waiting& pending : pending_.ListWaiting()) {
    progress.stage = pending.refused.ok() ? Stage::kGathering : Stage::kWaitingForMemory;
    progress.no_memory = MessageOf(pending.refused);
    progress.waiting_ranks = std::move(pending.ranks);
    progress.conflict = std::move(pending.conflict);
    loads.emplace_back(std::move(pending.name), progress);
  }
  return loads;
}

void Coordinator::ShowWaiting() {
  for (const auto& [name, progress] : Gathering()) observers_.OnProgress(name, progress);
}

void Coordinator::AbortEverywhere(const std::string& name, const absl::Status& why) {
  parts_.catalog.Fail(name, why);
  const auto links = parts_.membership.Links();
  AtOnce(links.size(), kMostCalls, [&](size_t i) {
    // A member that cannot be told is dropped by its silence and fails its loads itself.
    const absl::Status status = links[i]->Abort(name, why, Clock::now() + timing::kAbort);
    if (!status.ok()) Log(LogLevel::kWarn, "{}: telling a rank: {}", name, MessageOf(status));
  });
}

}  // namespace ckptd
