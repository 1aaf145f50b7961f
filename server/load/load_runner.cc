#include "server/load/load_runner.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/at_once.h"
#include "common/base/digest.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/unexpected.h"
#include "common/plan/view/view.h"
#include "common/source/open.h"
#include "server/load/error_attribution.h"
#include "server/load/error_priority.h"
#include "server/load/execute_fanout.h"
#include "server/load/rank_load.h"
#include "server/load/tied.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

SourceAccess Watched(const LoadRunner::Parts& parts, const LoadRequest& request) {
  SourceAccess access = parts.reading.AccessFor(request);
  access.watch = parts.stalls == nullptr ? std::make_shared<StorageWatch>(request.source, "")
                                         : parts.stalls->Watch(request.source);
  return access;
}

Deadline Sooner(Deadline deadline, std::chrono::nanoseconds from_now) {
  return std::min(deadline, Clock::now() + std::chrono::duration_cast<Clock::duration>(from_now));
}

}  // namespace

LoadRunner::LoadRunner(Parts parts, const ReadyLoad& load, Membership::Session session)
    : parts_(std::move(parts)),
      load_(load),
      session_(std::move(session)),
      access_(Watched(parts_, load.request)),
      // Other daemons do not have what was passed to this one.
      reader_(access_.IsPassed(load.request.source) ? ReaderPolicy::kRank0 : parts_.reader) {}

absl::Status LoadRunner::Enter(LoadState state) {
  CKPTD_RETURN_IF_ERROR(load_.state->Advance(state));
  meter_.Enter(StageOf(state));
  ShowProgress();
  return absl::OkStatus();
}

Progress LoadRunner::ShowProgress() {
  Progress progress = meter_.Read();
  if (parts_.observer != nullptr) parts_.observer->OnProgress(load_.name, progress);
  return progress;
}

LoadOutcome LoadRunner::Run() {
  LoadOutcome outcome;
  outcome.status = FindLost(outcome.lost);
  if (outcome.status.ok() && !outcome.lost.empty()) return outcome;
  if (outcome.status.ok()) outcome.status = Load();
  if (!refused_by_.empty()) {
    GiveBackAll();
    outcome.refused_by = refused_by_;
    outcome.refused = std::exchange(outcome.status, absl::OkStatus());
    outcome.refused_at = Clock::now();
  }
  if (!outcome.status.ok()) {
    AbortAll(outcome.status);
    // Somebody may have given it up who had not done its part. After they were told: NCCL may wait
    // for its neighbours to end theirs.
    if (!scatters_.empty()) {
      parts_.peers.comms.Drop();
      DisableUnusedComm(outcome.status);
    }
  }
  fanout_.reset();  // its broken streams would tell the members less
  if (index_ != nullptr) outcome.files = index_->files;
  MutexLock lock(mutex_);
  outcome.holders = holders_;
  return outcome;
}

absl::Status LoadRunner::FindLost(std::set<uint32_t>& lost) {
  for (uint32_t rank = 0; rank < load_.layouts.size() && IsRankForm(load_.request); ++rank) {
    if (load_.layouts[rank] != nullptr) continue;
    const auto holds =
        session_.links[rank]->Holds(load_.name, Sooner(load_.deadline, timing::kMemberCall));
    if (!holds.ok()) return AttributeToRank(rank, holds.status());
    if (!*holds) lost.insert(rank);
  }
  return absl::OkStatus();
}

absl::Status LoadRunner::Load() {
  CKPTD_RETURN_IF_ERROR(Open());
  CKPTD_RETURN_IF_ERROR(PlanAll());
  CKPTD_RETURN_IF_ERROR(PrepareAll());
  if (!participants_.empty()) CKPTD_RETURN_IF_ERROR(Transfer());
  return CommitAll();
}

absl::Status LoadRunner::Interrupted() const {
  if (parts_.stopping.load(std::memory_order_relaxed)) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDraining,
                     fmt::format("loading {}: the leader's daemon is stopping; start it and load "
                                 "again",
                                 load_.request.source));
  }
  CKPTD_RETURN_IF_ERROR(load_.state->cancelled());
  if (Clock::now() > load_.deadline) {
    const Progress progress = meter_.Read();
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                     fmt::format("loading {}: the timeout passed while {} ({} of {} bytes were "
                                 "placed); load again with a longer timeout",
                                 load_.request.source, NameOf(progress.stage), progress.bytes_done,
                                 progress.bytes_total));
  }
  return parts_.membership.CheckEpoch(session_.epoch);
}

absl::Status LoadRunner::Open() {
  CKPTD_RETURN_IF_ERROR(Enter(LoadState::kOpening));
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, OnlyRead([this] {
                           return OpenSettledCheckpoint(load_.request.source, access_);
                         }));
  CheckpointIndex& index = opened.index;
  if (!load_.files.empty() && index.files != load_.files) {
    return MakeError(absl::StatusCode::kAborted, reason::kSourceChanged,
                     fmt::format("loading {}: its files have changed since other ranks loaded "
                                 "them; load again, all ranks then get the new ones",
                                 load_.request.source));
  }
  for (const std::string& remark : opened.remarks) {
    Log(LogLevel::kInfo, "{}: {}: {}", load_.name, load_.request.source, remark);
  }
  CKPTD_ASSIGN_OR_RETURN(index, view::SeenThrough(load_.request.view, std::move(index)));
  index_ = std::make_shared<const CheckpointIndex>(std::move(index));
  return Interrupted();
}

absl::StatusOr<std::vector<Cohort>> LoadRunner::Cohorts() const {
  std::vector<uint32_t> ranks;
  std::vector<std::shared_ptr<const RankLayout>> layouts;
  for (uint32_t rank = 0; rank < session_.links.size(); ++rank) {
    if (IsRankForm(load_.request)) {
      if (load_.layouts[rank] == nullptr) continue;  // holds its shard already
      layouts.push_back(load_.layouts[rank]);
    }
    ranks.push_back(rank);
  }
  return CohortsOf(load_.request, *index_, ranks, layouts);
}

absl::Status LoadRunner::PlanAll() {
  CKPTD_RETURN_IF_ERROR(Enter(LoadState::kPlanning));
  const auto cohorts = Cohorts();
  if (!cohorts.ok()) return AttributeToRank(0, cohorts.status());
  auto plan = GroupPlan::Make(index_, *cohorts, load_.request.policy);
  if (!plan.ok()) return AttributeByFacts(plan.status());
  plan_ = std::make_shared<const GroupPlan>(*std::move(plan));
  for (const PlannedRank& planned : plan_->ranks()) {
    Participant& participant = participants_.emplace_back();
    participant.rank = planned.rank;
    participant.plan = &planned;
  }
  // After the plans: where names only lack a prefix, what is missing says so.
  CKPTD_RETURN_IF_ERROR(CheckNames());
  CKPTD_RETURN_IF_ERROR(CheckTied());
  return Interrupted();
}

absl::Status LoadRunner::CheckNames() const {
  std::vector<const RankLayout*> layouts;
  for (const auto& layout : load_.layouts) {
    // Ranks that hold their shard already were part of this check when it was loaded.
    if (layout == nullptr) return absl::OkStatus();
    layouts.push_back(layout.get());
  }
  return CheckNothingUnexpected(*index_, layouts);
}

absl::Status LoadRunner::CheckTied() const {
  std::vector<const RankLayout*> layouts;
  for (const auto& layout : load_.layouts) {
    if (layout != nullptr) layouts.push_back(layout.get());
  }
  return OnlyRead([&] {
    return ckptd::CheckTied(*index_, layouts, [this] { return Interrupted(); }, access_);
  });
}

PrepareCall LoadRunner::CallFor(const Participant& participant) const {
  PrepareCall call;
  call.epoch = session_.epoch;
  call.name = load_.name;
  call.request = load_.request;
  if (IsRankForm(load_.request)) call.request.layout = load_.layouts[participant.rank];
  call.index = index_;
  call.rank_digest = participant.plan->digest;
  call.plan_digest = plan_->digest();
  call.request_digests = load_.request_digests;
  call.members_read = reader_ != ReaderPolicy::kRank0;
  call.unmapped = participant.unmapped;
  // What other ranks hold already comes first, whether it waits for memory or not: their clients may
  // wait for this one, and an older load for the memory that they hold.
  const bool waits = Clock::now() < load_.memory_deadline;
  call.order = !load_.files.empty() ? 1 : waits ? load_.order + 1 : 0;
  return call;
}

absl::Status LoadRunner::ForEach(const std::function<absl::Status(Participant&)>& act) {
  // Own part on this thread, the others' beside it: rank 0 is the first.
  std::vector<absl::Status> answers(participants_.size());
  AtOnce(answers.size(), kMostCalls, [&](size_t i) { answers[i] = act(participants_[i]); });
  absl::Status cause;
  uint32_t rank = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!Outranks(answers[i], cause)) continue;
    cause = answers[i];
    rank = participants_[i].rank;
  }
  return cause.ok() ? cause : AttributeToRank(rank, cause);
}

bool LoadRunner::UnmapReleased() {
  bool refused = false;
  uint64_t unmapped = 0;
  for (Participant& participant : participants_) {
    const absl::StatusOr<PrepareReply>& reply = participant.prepared;
    const bool no_memory = reply.status().code() == absl::StatusCode::kResourceExhausted;
    refused = refused || no_memory;
    // Resident ranks and those that failed otherwise do not say which segments they own.
    const bool known = no_memory || (reply.ok() && !reply->resident);
    if (participant.rank == 0 || !known) continue;
    unmapped += parts_.peers.memory.KeepOnly(
        participant.rank, no_memory ? std::vector<uint64_t>() : reply->owned_segments);
    participant.unmapped = no_memory;
  }
  return refused && unmapped > 0;
}

absl::Status LoadRunner::Prepare(Participant& participant) {
  absl::StatusOr<PrepareReply>& reply = participant.prepared;
  reply = session_.links[participant.rank]->Prepare(CallFor(participant),
                                                    Sooner(load_.deadline, timing::kPrepare));
  CKPTD_RETURN_IF_ERROR(reply.status());
  if (reply->rank_digest != participant.plan->digest) {
    reply = MakeError(absl::StatusCode::kInternal, reason::kPlanMismatch,
                     fmt::format("preparing {}: its plan digest is {}, the leader's {}; run the "
                                 "same ckptd on every rank",
                                 load_.name, HexDigest(reply->rank_digest),
                                 HexDigest(participant.plan->digest)));
    return reply.status();
  }
  participant.reply = *reply;
  return absl::OkStatus();
}

bool LoadRunner::WaitsForMemory(const absl::Status& prepared) {
  if (prepared.ok() || Clock::now() >= load_.memory_deadline || !Interrupted().ok()) return false;
  std::set<uint32_t> refused_by;
  for (const Participant& participant : participants_) {
    const absl::Status& status = participant.prepared.status();
    if (status.ok()) continue;
    if (ReasonOf(status) != reason::kNoMemory) return false;
    if (FactsOf(status).count(Eviction::kHeldBy) == 0) return false;
    refused_by.insert(participant.rank);
  }
  refused_by_ = std::move(refused_by);
  return !refused_by_.empty();
}

void LoadRunner::GiveBackAll() {
  AtOnce(participants_.size(), kMostCalls, [&](size_t i) {
    const uint32_t rank = participants_[i].rank;
    const absl::Status status =
        session_.links[rank]->GiveBack(load_.name, Clock::now() + timing::kAbort);
    // The next Prepare of this load begins with it.
    if (!status.ok()) {
      Log(LogLevel::kWarn, "{}: telling rank {} to give memory back: {}", load_.name, rank,
          MessageOf(status));
    }
  });
  Log(LogLevel::kInfo, "{}: waits for memory of rank {}", load_.name, fmt::join(refused_by_, ", "));
}

absl::Status LoadRunner::NameHeldMemory(const absl::Status& status) const {
  if (ReasonOf(status) != reason::kNoMemory || parts_.stalls == nullptr) return status;
  const std::string held = parts_.stalls->DescribeHeld();
  if (held.empty()) return status;
  return MakeError(status.code(), reason::kNoMemory, MessageOf(status) + "; " + held,
                   FactsOf(status));
}

absl::Status LoadRunner::PrepareAll() {
  CKPTD_RETURN_IF_ERROR(Enter(LoadState::kAllocating));
  absl::Status prepared =
      ForEach([this](Participant& participant) { return Prepare(participant); });
  if (!prepared.ok() && UnmapReleased()) {
    prepared = ForEach([this](Participant& participant) {
      const absl::Status& refused = participant.prepared.status();
      return refused.code() == absl::StatusCode::kResourceExhausted ? Prepare(participant) : refused;
    });
  }
  {
    // Ranks that have their shard hold it, whatever becomes of the others.
    MutexLock lock(mutex_);
    for (const Participant& participant : participants_) {
      if (!participant.reply.resident) continue;
      holders_.insert(participant.rank);
      holding_.push_back(participant.rank);
    }
  }
  if (WaitsForMemory(prepared)) return prepared;
  CKPTD_RETURN_IF_ERROR(NameHeldMemory(prepared));
  participants_.erase(std::remove_if(participants_.begin(), participants_.end(),
                                     [](const Participant& p) { return p.reply.resident; }),
                      participants_.end());
  return Interrupted();
}

absl::Status LoadRunner::CommitAll() {
  CKPTD_RETURN_IF_ERROR(Interrupted());
  CKPTD_RETURN_IF_ERROR(Enter(LoadState::kPublishing));
  Progress progress = meter_.Read();
  const absl::Status committed = ForEach([&](Participant& participant) -> absl::Status {
    CommitCall call;
    call.epoch = session_.epoch;
    call.name = load_.name;
    call.tensor_bytes = participant.filled_bytes;
    call.streamed_bytes = participant.streamed_bytes;
    call.carried_bytes = participant.carried_bytes;
    call.digests = participant.digests;
    call.progress = progress;
    // A rank that has to hash its whole shard, or to copy it to its host tier, takes its
    // time; one that is gone is dropped.
    const bool works = (load_.request.digests && call.digests.empty()) ||
                       load_.request.intended == AttachMode::kExclusive;
    CKPTD_RETURN_IF_ERROR(session_.links[participant.rank]->Commit(
        call, Clock::now() + (works ? timing::kPrepare : timing::kMemberCall)));
    MutexLock lock(mutex_);
    holders_.insert(participant.rank);
    return absl::OkStatus();
  });
  CKPTD_RETURN_IF_ERROR(committed);
  CKPTD_RETURN_IF_ERROR(CompleteHolders());
  return load_.state->Advance(LoadState::kActive);
}

// Their clients may wait for the others; and in between one may have let go of its shard.
absl::Status LoadRunner::CompleteHolders() {
  if (IsRankForm(load_.request)) return absl::OkStatus();
  std::vector<absl::Status> answers(holding_.size());
  CommitCall call;
  call.epoch = session_.epoch;
  call.name = load_.name;
  AtOnce(answers.size(), kMostCalls, [&](size_t i) {
    answers[i] = session_.links[holding_[i]]->Commit(call, Clock::now() + timing::kMemberCall);
  });
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].ok()) return AttributeToRank(holding_[i], answers[i]);
  }
  return absl::OkStatus();
}

absl::Status LoadRunner::ProbeUnresponsive(const absl::Status& status) {
  const bool failed = status.code() == absl::StatusCode::kUnavailable &&
                      ReasonOf(status) == reason::kNcclFailed;
  const bool apart = !scatters_.empty() && status.code() == absl::StatusCode::kDeadlineExceeded &&
                     ReasonOf(status) == reason::kRankMissing;
  if (!failed && !apart) return status;
  std::vector<absl::Status> probed(session_.links.size());
  AtOnce(probed.size(), kMostCalls, [&](size_t i) {
    probed[i] = session_.links[i]->Probe(Clock::now() + timing::kProbe);
  });
  absl::Status gone;
  for (uint32_t rank = 0; rank < probed.size(); ++rank) {
    if (!probed[rank].ok() && gone.ok()) gone = AttributeToRank(rank, probed[rank]);
  }
  if (!gone.ok()) return gone;
  if (!apart || Clock::now() >= load_.deadline) return status;
  // Whom it misses is there: the library cannot reach what daemons reach.
  return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed,
                   fmt::format("{}; all daemons answer rank 0, so NCCL may take another way, that "
                               "is closed: look at its interface and ports "
                               "(CKPTD_NCCL_SOCKET_IFNAME, firewalls), or use --comm host",
                               MessageOf(status)),
                   FactsOf(status));
}

absl::Status LoadRunner::WaitForStragglers(const absl::Status& status) {
  const ScatterCall* const call = scatters_.first();
  if (call == nullptr || ReasonOf(status) != reason::kDeadline) return status;
  // Where rank 0 takes part, it does so in the first.
  return exchanges_.NameStragglers(status, call->ranks);
}

absl::Status LoadRunner::AttributeToRank(uint32_t rank, const absl::Status& status) {
  const Attribution found = Attribute(rank, status);
  // Calls end with the load, but those that publish it: a rank that has not answered by then may
  // be well.
  const bool ended = Clock::now() >= load_.deadline && meter_.Read().stage != Stage::kPublishing;
  if (found.may_be_deadline && ended) CKPTD_RETURN_IF_ERROR(Interrupted());
  if (found.rank_is_lost) parts_.membership.Drop(rank, session_.epoch, "it does not answer");
  if (found.may_be_epoch) CKPTD_RETURN_IF_ERROR(parts_.membership.CheckEpoch(session_.epoch));
  return found.status;
}

absl::Status LoadRunner::AttributeByFacts(const absl::Status& status) {
  const std::optional<uint32_t> rank = RankNamedBy(status, session_.links.size());
  return rank.has_value() ? AttributeToRank(*rank, status) : status;
}

void LoadRunner::AbortAll(const absl::Status& why) {
  load_.state->Fail();
  AtOnce(session_.links.size(), kMostCalls, [&](size_t rank) {
    const absl::Status status =
        session_.links[rank]->Abort(load_.name, why, Clock::now() + timing::kAbort);
    // A rank that cannot be told is about to be dropped, and learns it when it joins.
    if (!status.ok()) {
      Log(LogLevel::kWarn, "{}: telling rank {} to abort: {}", load_.name, rank,
          MessageOf(status));
    }
  });
}

}  // namespace ckptd
