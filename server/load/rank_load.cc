#include "server/load/rank_load.h"

#include <utility>

#include <fmt/format.h>

#include "common/base/heap.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/unexpected.h"
#include "common/plan/plan_match.h"
#include "server/transfer/transfer.h"

namespace ckptd {

namespace {

absl::Status CheckLayoutOf(const RankLayout* layout, uint32_t rank) {
  if (layout != nullptr && layout->rank == rank) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, reason::kWrongRank,
                   fmt::format("planning rank {}: its layout is missing", rank));
}

// Why the memory of `resident` is not for a load with that match; empty: it is.
std::string WhyNot(const PrepareCall& call, const RankPlan& resident, const PlanMatch& match) {
  if (!match.differs.empty()) return match.differs;
  // Each is matched once. Who takes the memory over would take what nobody has asked for, too.
  const size_t more = resident.tensors.size() - match.resident.size();
  if (call.request.intended != AttachMode::kExclusive || more == 0) return {};
  return fmt::format("it has {} tensors that are not asked for, and its memory is to be taken over",
                     more);
}

// `wanted` where its tensors lie in the slab of `resident`.
Shard ViewOf(const Shard& resident, const PlanMatch& match, const Shard& wanted) {
  Shard view = wanted;
  view.plan.slab_bytes = resident.plan.slab_bytes;
  for (size_t i = 0; i < match.resident.size(); ++i) {
    const uint32_t there = match.resident[i];
    view.plan.tensors[i].offset = resident.plan.tensors[there].offset;
    if (!resident.digests.empty()) view.digests.push_back(resident.digests[there]);
  }
  return view;
}

}  // namespace

absl::StatusOr<RankLayout> LayoutOfRank(const LoadRequest& request, const CheckpointIndex& index,
                                        uint32_t rank) {
  if (const auto* layout = std::get_if<std::shared_ptr<const RankLayout>>(&request.layout)) {
    CKPTD_RETURN_IF_ERROR(CheckLayoutOf(layout->get(), rank));
    return **layout;
  }
  CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules,
                         LayoutRules::Parse(std::get<std::string>(request.layout)));
  return rules.ForRank(index, rank);
}

absl::StatusOr<RankPlan> PlanOfRank(const LoadRequest& request, const CheckpointIndex& index,
                                    uint32_t rank) {
  CKPTD_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOfRank(request, index, rank));
  return PlanRank(index, layout, request.policy);
}

absl::StatusOr<std::vector<Cohort>> CohortsOf(
    const LoadRequest& request, const CheckpointIndex& index, std::span<const uint32_t> ranks,
    std::span<const std::shared_ptr<const RankLayout>> layouts) {
  if (const auto* text = std::get_if<std::string>(&request.layout)) {
    CKPTD_ASSIGN_OR_RETURN(const LayoutRules rules, LayoutRules::Parse(*text));
    return rules.ForRanks(index, ranks);
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    CKPTD_RETURN_IF_ERROR(CheckLayoutOf(i < layouts.size() ? layouts[i].get() : nullptr, ranks[i]));
  }
  return JoinEqual(layouts.first(ranks.size()));
}

absl::StatusOr<Shard> RankLoad::Plan(const PrepareCall& call) const {
  Shard shard;
  CKPTD_ASSIGN_OR_RETURN(shard.plan, PlanOfRank(call.request, *call.index, options_.rank));
  if (shard.plan.digest != call.rank_digest) {
    return MakeError(absl::StatusCode::kInternal, reason::kPlanMismatch,
                     fmt::format("planning {}: rank {} computed plan digest {}, the leader {}; run "
                                 "the same ckptd on every rank",
                                 call.name, options_.rank, HexDigest(shard.plan.digest),
                                 HexDigest(call.rank_digest)));
  }
  if (IsRankForm(call.request)) {
    const RankLayout* const own = std::get<std::shared_ptr<const RankLayout>>(call.request.layout).get();
    shard.unexpected = UnexpectedTensors(*call.index, {&own, 1});
  }
  return shard;
}

void RankLoad::ForgetOver() {
  MutexLock lock(mutex_);
  for (auto it = incoming_.begin(); it != incoming_.end();) {
    it = it->second->over() ? incoming_.erase(it) : std::next(it);
  }
}

void RankLoad::NoteReaders(const PrepareCall& call) {
  const bool another = std::exchange(epoch_, call.epoch) != call.epoch;
  if (call.unmapped || (another && call.members_read)) backend_.OnWriterRestart();
}

bool RankLoad::HoldsUntilOthersDo(const PrepareCall& call, uint64_t since) {
  if (!catalog_.HasActive(call.name, call.rank_digest)) return false;
  // By rank nobody tells when the others are filled.
  if (!IsRankForm(call.request)) catalog_.BeginFilling(call.name, since);
  return true;
}

absl::StatusOr<PrepareReply> RankLoad::Prepare(const PrepareCall& call, uint64_t since) {
  PrepareReply reply;
  reply.rank_digest = call.rank_digest;
  reply.memory_endpoint = options_.memory_endpoint;
  reply.resident = HoldsUntilOthersDo(call, since);
  if (reply.resident) return reply;
  catalog_.eviction().GiveBack(call.name);  // of an attempt before
  ForgetOver();  // what a failed load still holds of its memory, this one may need
  NoteReaders(call);
  catalog_.Begin(call.name, call.request, since);
  CKPTD_ASSIGN_OR_RETURN(Shard shard, Plan(call));
  CKPTD_ASSIGN_OR_RETURN(reply.resident, ServeResident(call, shard));
  if (reply.resident) return reply;
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<ShardMemory> memory,
                         catalog_.eviction().Allocate(call, std::move(shard)));
  const std::shared_ptr<const Shard> planned = catalog_.LoadingShard(call.name);
  if (planned == nullptr) return CheckpointNotFound(call.name);
  ReturnFreeHeap();  // tables that only planning needed
  if (const SlabView view = memory->View(); view.staged != nullptr) {
    CKPTD_RETURN_IF_ERROR(ZeroPadding(planned->plan, view));
  }
  CKPTD_ASSIGN_OR_RETURN(reply.resident, Restore(call, planned->plan, *memory));
  if (reply.resident) return reply;
  {
    MutexLock lock(mutex_);
    incoming_[call.name] = std::make_shared<PreparedLoad>(call, planned, memory);
  }
  for (const Segment& segment : memory->Segments()) {
    reply.segments.push_back({segment.id, segment.bytes});
  }
  reply.owned_segments = backend_.OwnedSegments();
  reply.device = backend_.device();
  reply.has_leases = options_.leases != nullptr && !options_.leases->Empty();
  if (options_.comms != nullptr) {
    reply.communicator = options_.comms->version();
    reply.no_communicator = options_.comms->why_none();
    reply.communicator_id = options_.comms->held_id();
  }
  return reply;
}

absl::StatusOr<bool> RankLoad::ServeResident(const PrepareCall& call, const Shard& shard) {
  // A load that is for other ranks lies in nobody's memory here, and must not go with it.
  if (shard.plan.tensors.empty()) return false;
  for (const Catalog::Resident& resident : catalog_.MayServe(call)) {
    // Shards keep no operations; whatever else was resident is a pure function of the same files.
    const auto plan = PlanOfRank(resident.request, *call.index, options_.rank);
    if (!plan.ok() || plan->digest != resident.shard->plan.digest) continue;
    const PlanMatch match = MatchPlans(*plan, shard.plan);
    if (const std::string why = WhyNot(call, *plan, match); !why.empty()) {
      Log(LogLevel::kInfo, "{}: {} is of the same files and does not serve it: {}", call.name,
          resident.name, why);
      continue;
    }
    CKPTD_ASSIGN_OR_RETURN(
        const bool published,
        catalog_.PublishView(call, resident, ViewOf(*resident.shard, match, shard)));
    if (!published) continue;
    Log(LogLevel::kInfo, "{}: active, {} tensors, all of them resident in {}: nothing is read",
        call.name, shard.plan.tensors.size(), resident.name);
    return true;
  }
  return false;
}

absl::StatusOr<bool> RankLoad::Restore(const PrepareCall& call, const RankPlan& plan,
                                       const ShardMemory& memory) {
  if (options_.host_tier == nullptr) return false;
  const auto begun = Clock::now();
  CKPTD_ASSIGN_OR_RETURN(HostTier::Restored restored,
                         options_.host_tier->Restore({plan.digest, call.index->files},
                                                     call.request.digests, memory.View()));
  if (!restored.done) return false;
  CommitCall commit;
  commit.name = call.name;
  if (call.request.digests) commit.digests = std::move(restored.digests);
  commit.progress.bytes_total = plan.tensor_bytes;
  commit.progress.bytes_done = plan.tensor_bytes;
  commit.progress.restored_bytes = plan.tensor_bytes;
  const auto took = Clock::now() - begun;
  commit.progress.stages = {{Stage::kTransferring, took}};
  CKPTD_RETURN_IF_ERROR(catalog_.Publish(commit));
  Log(LogLevel::kInfo, "{}: active, {:.1f} MB from the host tier, {:.3f} s", call.name,
      static_cast<double>(plan.slab_bytes) / 1e6, std::chrono::duration<double>(took).count());
  return true;
}

// Before anybody is given the memory.
void RankLoad::KeepPristine(const std::string& name, const PreparedLoad& incoming,
                            const RankPlan& plan, const std::vector<uint64_t>& digests) {
  if (options_.host_tier == nullptr) return;
  if (incoming.request().intended != AttachMode::kExclusive) return;
  const std::shared_ptr<ShardMemory> memory = catalog_.LoadingMemory(name);
  if (memory == nullptr) return;
  options_.host_tier->Keep(name, {plan.digest, incoming.index().files}, memory->View(),
                           plan.slab_bytes, digests);
}

absl::Status RankLoad::Clear(const std::string& name) {
  const std::shared_ptr<ShardMemory> memory = catalog_.LoadingMemory(name);
  const std::shared_ptr<const Shard> shard = catalog_.LoadingShard(name);
  if (memory == nullptr || shard == nullptr) return CheckpointNotFound(name);
  const SlabView view = memory->View();
  if (view.segments.empty()) return absl::OkStatus();  // none, or staged: Prepare saw to it
  return ZeroPadding(shard->plan, view);
}

absl::StatusOr<std::shared_ptr<PreparedLoad>> RankLoad::Receive(uint64_t epoch,
                                                            const std::string& name) {
  MutexLock lock(mutex_);
  const auto at = incoming_.find(name);
  if (at == incoming_.end() || at->second->over()) return CheckpointNotFound(name);
  if (at->second->epoch() == epoch) return at->second;
  return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged,
                   fmt::format("receiving {}: it was prepared in epoch {}, the sender is in {}; "
                               "load again",
                               name, at->second->epoch(), epoch));
}

void RankLoad::GiveBack(const std::string& name) {
  catalog_.eviction().GiveBack(name);
  ForgetOver();
}

absl::Status RankLoad::Commit(const CommitCall& call) {
  if (catalog_.Complete(call.name)) return absl::OkStatus();
  const std::shared_ptr<const Shard> shard = catalog_.LoadingShard(call.name);
  std::shared_ptr<PreparedLoad> incoming;
  {
    MutexLock lock(mutex_);
    const auto at = incoming_.find(call.name);
    if (at != incoming_.end()) incoming = std::move(at->second);
    incoming_.erase(call.name);
  }
  if (shard == nullptr || incoming == nullptr) return CheckpointNotFound(call.name);
  const RankPlan& plan = shard->plan;
  CommitCall checked = call;
  CKPTD_ASSIGN_OR_RETURN(checked.digests, incoming->Finish(call));
  if (!checked.digests.empty() && checked.digests.size() != plan.tensors.size()) {
    return MakeError(absl::StatusCode::kInternal, reason::kCoverage,
                     fmt::format("publishing {} on rank {}: {} digests came for {} tensors; "
                                 "nothing was published, please report this",
                                 call.name, options_.rank, checked.digests.size(),
                                 plan.tensors.size()));
  }
  KeepPristine(call.name, *incoming, plan, checked.digests);
  CKPTD_RETURN_IF_ERROR(catalog_.Publish(checked));
  std::chrono::nanoseconds total{0};
  for (const auto& [stage, duration] : call.progress.stages) total += duration;
  Log(LogLevel::kInfo, "{}: active, {} tensors, {:.1f} MB, {:.3f} s", call.name,
      plan.tensors.size(), static_cast<double>(plan.slab_bytes) / 1e6,
      std::chrono::duration<double>(total).count());
  return absl::OkStatus();
}

}  // namespace ckptd
