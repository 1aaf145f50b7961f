// A reader's part of a scatter: fills memory step by step, and sends each step while the next one
// is filled.
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

// The load worker makes one for a load and uses it once.
class ScatterReader {
 public:
  struct Parts {
    TransitAllocator& transit;
    CommunicatorCache& comms;
    std::string name;  // name of the checkpoint
    Deadline deadline;
    const GroupPlan& plan;
    ScatterExchange::MakeRoom make_room;  // makes room in the backend's memory
  };
  // A rank whose bytes this rank reads.
  struct Target {
    uint32_t rank = 0;   // rank in the group
    size_t counter = 0;  // index in the progress
    const PlannedRank* plan = nullptr;
    SlabView slab;       // own or mapped memory; empty: the communicator carries the bytes
    bool own = false;
  };
  // `call` must outlive it.
  ScatterReader(Parts parts, const ScatterCall& call);

  void Add(Target target) { targets_.push_back(std::move(target)); }
  // Errors: PLAN_MISMATCH if the leader's order is not ours, and those of the transfer and of the
  // communicator.
  absl::StatusOr<TransferResult> Run(TransferOptions options, TransferProgress& progress);
  // Bytes of tensors that other readers sent here.
  uint64_t carried_bytes() const { return carried_bytes_; }

 private:
  // Fills `step_targets_` and the exchange's buffers.
  absl::Status Connect(ScatterExchange& exchange);
  // Finds the tensors of the call that all ranks hold whole.
  absl::Status FindWhole();
  // Adds a target for ranks with equal shards: read once, and sent along their tree. `counters`:
  // the ranks' progress.
  ScatterExchange::OutBuffer AddReplicas(const ReplicaSet& set, std::vector<size_t> counters);
  // Adds a target for whole tensors: read once and broadcast.
  void AddWhole(std::vector<ScatterExchange::OutBuffer>& out_buffers);
  absl::StatusOr<RankPlan> WholePlan(const PlannedRank& rank) const;
  const Target* Own() const;

  const Parts parts_;
  const ScatterCall& call_;
  const ScatterOrder order_;
  WholeTensors whole_;
  std::vector<Target> targets_;
  std::vector<StepTarget> step_targets_;
  RankPlan own_plan_;  // set if other ranks read, too
  uint64_t carried_bytes_ = 0;
};

// The part of a scatter that all ranks do: joins the communicator of `call` and runs `exchange`
// on it. Errors: those of both. An error also stops the exchange.
absl::Status CarryOut(CommunicatorCache& comms, const ScatterCall& call, const std::string& name,
                      Deadline deadline, ScatterExchange& exchange);

// Errors: Internal PLAN_MISMATCH if this rank's order of operations is not the leader's.
absl::Status CheckScatterDigest(const ScatterCall& call, const ScatterOrder& order,
                                uint64_t rank_digest);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_SCATTER_READER_H_
