// A reader's part of a scatter: fills memory step by step, and sends it on meanwhile.
#ifndef CKPTD_SERVER_COLLECTIVE_SCATTER_READER_H_
#define CKPTD_SERVER_COLLECTIVE_SCATTER_READER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/collective/communicator_cache.h"
#include "server/collective/scatter_exchange.h"
#include "server/memory/memory.h"
#include "server/protocol/domain.h"
#include "server/protocol/scatter_call.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Used once, on the load worker.
class ScatterReader {
 public:
  struct Parts {
    TransitAllocator& transit;
    CommunicatorCache& comms;
    std::string name;  // of the checkpoint
    Deadline deadline;
    const GroupPlan& plan;
    ScatterExchange::MakeRoom make_room;  // in the backend's memory
  };
  // A rank whose bytes this one reads.
  struct Target {
    uint32_t rank = 0;   // of the group
    size_t counter = 0;  // of the progress
    const PlannedRank* plan = nullptr;
    SlabView slab;       // own, or mapped; empty: the communicator brings them
    bool own = false;
  };
  // `call` outlives it.
  ScatterReader(Parts parts, const ScatterCall& call);

  void Add(Target target) { targets_.push_back(std::move(target)); }
  // Errors: PLAN_MISMATCH when the leader's order is not ours, those of the transfer and of
  // the communicator.
  absl::StatusOr<TransferResult> Run(TransferOptions options, TransferProgress& progress);
  // Bytes of tensors that other readers sent here.
  uint64_t carried_bytes() const { return carried_bytes_; }

 private:
  // Fills `step_targets_` and the exchange's outlets.
  absl::Status Connect(ScatterExchange& exchange);
  // Which tensors of the call all ranks hold.
  absl::Status FindWhole();
  // What is read once for ranks of equal shards, and how it leaves; their counters of progress.
  ScatterExchange::OutBuffer AddReplicas(const ReplicaSet& set, std::vector<size_t> counters);
  // What is read once and broadcast.
  void AddWhole(std::vector<ScatterExchange::OutBuffer>& outlets);
  absl::StatusOr<RankPlan> WholePlan(const PlannedRank& rank) const;
  const Target* Own() const;

  const Parts parts_;
  const ScatterCall& call_;
  const ScatterOrder order_;
  WholeTensors whole_;
  std::vector<Target> targets_;
  std::vector<StepTarget> step_targets_;
  RankPlan own_plan_;  // where others read, too
  uint64_t carried_bytes_ = 0;
};

// Of what all ranks of a scatter do: joins the communicator of `call` and runs `exchange` on
// it. Errors: both's; the exchange is stopped with them.
absl::Status CarryOut(CommunicatorCache& comms, const ScatterCall& call, const std::string& name,
                      Deadline deadline, ScatterExchange& exchange);

// Errors: Internal PLAN_MISMATCH unless this rank's order of operations is the leader's.
absl::Status CheckScatterDigest(const ScatterCall& call, const ScatterOrder& order,
                                uint64_t rank_digest);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_SCATTER_READER_H_
