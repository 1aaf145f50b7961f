// What communicators carry in one load: which ranks join which, and the call of each rank.
#ifndef CKPTD_SERVER_LOAD_SCATTER_PLAN_H_
#define CKPTD_SERVER_LOAD_SCATTER_PLAN_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/group_plan.h"
#include "common/plan/scatter_order.h"
#include "common/source/index.h"
#include "server/collective/replica_tree.h"
#include "server/protocol/reading.h"
#include "server/protocol/scatter_call.h"

namespace ckptd {

// Made by one thread, read by any afterwards.
class ScatterPlan {
 public:
  // All of it outlives Add.
  struct Load {
    const CheckpointIndex& index;
    const GroupPlan& plan;
    // The plan of a rank that lacks its shard; null: it has its shard and takes no part in any
    // exchange.
    std::function<const PlannedRank*(uint32_t rank)> plan_of;
    // The id by which these ranks join: that of a communicator that they all hold, where there is one.
    std::function<absl::StatusOr<std::string>(const std::vector<uint32_t>& ranks)> communicator_id;
    size_t world_size = 0;
  };
  // One more communicator: it brings what the reader of `share` reads to `ranks`, of which the
  // reader is the first. With several parts all ranks are readers. Errors: those of
  // communicator_id.
  absl::Status Add(const Load& load, const ReaderShare& share, const std::vector<uint32_t>& ranks);

  bool empty() const { return scatters_.empty(); }
  // Whether that rank is in a communicator.
  bool Contains(uint32_t rank) const;
  // The rank's own call; unset: it is in none. Each names all ranks, so they are made when needed.
  std::optional<ScatterCall> CallOf(uint32_t rank) const;
  // What all ranks of the first communicator have in common: rank 0 takes part in the first, if in
  // any, and readers of parts are all in it. Null: there is none.
  const ScatterCall* first() const { return empty() ? nullptr : &scatters_.front().common; }
  // The longest that an exchange may take; zero where there is none.
  std::chrono::nanoseconds Patience() const;

 private:
  struct Scatter {
    ScatterCall common;  // without the rank, its replicas and its digest
    std::vector<ReplicaSet> sets;
    std::vector<uint64_t> digests;  // by rank of the communicator
    ScatterCall CallOf(uint32_t rank) const;
  };
  std::vector<Scatter> scatters_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_SCATTER_PLAN_H_
