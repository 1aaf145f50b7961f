#include "server/load/scatter_plan.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "server/collective/scatter_exchange.h"

namespace ckptd {
namespace {

// A tensor that all ranks hold is an operation of its own from so many bytes on.
constexpr uint64_t kLeastBroadcast = uint64_t{64} << 10;

}  // namespace

absl::Status ScatterPlan::Add(const Load& load, const ReaderShare& share,
                              const std::vector<uint32_t>& ranks) {
  Scatter scatter;
  ScatterCall& call = scatter.common;
  CKPTD_ASSIGN_OR_RETURN(call.comm_id, load.communicator_id(ranks));
  call.ranks = ranks;
  for (uint32_t rank = 0; rank < (share.parts > 1 ? ranks.size() : 1); ++rank) {
    call.readers.push_back(rank);
  }
  call.size = ScatterSizeFor(load.world_size);
  const ScatterOrder order = OrderScatter(load.index, call.size);
  std::vector<const PlannedRank*> plans;
  for (const uint32_t rank : ranks) plans.push_back(load.plan_of(rank));
  scatter.sets = FindReplicas(plans);
  call.fanout = FanoutFor(scatter.sets.size());
  // Equal slabs are broadcast as they are; a rank that has its shard takes no part in anything.
  if (scatter.sets.size() > 1 && std::count(plans.begin(), plans.end(), nullptr) == 0) {
    call.whole = load.plan.WholeOn(plans, kLeastBroadcast);
  }
  scatter.digests.resize(ranks.size());
  for (uint32_t rank = 0; rank < ranks.size(); ++rank) {
    const PlannedRank* const plan = plans[rank];
    scatter.digests[rank] =
        ScatterDigest(scatter.CallOf(rank), order, plan == nullptr ? 0 : plan->digest);
  }
  scatters_.push_back(std::move(scatter));
  return absl::OkStatus();
}

ScatterCall ScatterPlan::Scatter::CallOf(uint32_t rank) const {
  ScatterCall call = common;
  call.rank = rank;
  call.replicas = {rank};
  for (const ReplicaSet& set : sets) {
    if (std::binary_search(set.ranks.begin(), set.ranks.end(), rank)) call.replicas = set.ranks;
  }
  call.digest = digests[rank];
  return call;
}

std::optional<ScatterCall> ScatterPlan::CallOf(uint32_t rank) const {
  for (const Scatter& scatter : scatters_) {
    const std::vector<uint32_t>& ranks = scatter.common.ranks;
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    if (at != ranks.end()) return scatter.CallOf(static_cast<uint32_t>(at - ranks.begin()));
  }
  return std::nullopt;
}

bool ScatterPlan::Contains(uint32_t rank) const {
  return std::any_of(scatters_.begin(), scatters_.end(), [rank](const Scatter& scatter) {
    const std::vector<uint32_t>& ranks = scatter.common.ranks;
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  });
}

std::chrono::nanoseconds ScatterPlan::Patience() const {
  std::chrono::nanoseconds longest{0};
  for (const Scatter& scatter : scatters_) {
    longest = std::max(longest, ScatterExchange::PatienceWith(scatter.common.ranks.size()));
  }
  return longest;
}

}  // namespace ckptd
