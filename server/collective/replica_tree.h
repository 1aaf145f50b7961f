// How ranks that receive the same bytes pass them on to each other. Plain values: every rank
// computes the same answers.
#ifndef CKPTD_SERVER_COLLECTIVE_REPLICA_TREE_H_
#define CKPTD_SERVER_COLLECTIVE_REPLICA_TREE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/plan/group_plan.h"

namespace ckptd {

// The path of one reader's steps to its replicas. The reader sends to the first replica, or is
// one itself. Each replica passes the step on to `fanout` others.
class ReplicaTree {
 public:
  ReplicaTree(std::span<const uint32_t> replicas, uint32_t reader, uint32_t fanout);

  // The replicas that the reader sends to. Empty: there is no other.
  std::vector<uint32_t> FromReader() const;
  // The replica's sender and its receivers. For replicas other than the reader.
  uint32_t ParentOf(uint32_t replica) const;
  std::vector<uint32_t> ChildrenOf(uint32_t replica) const;
  // How many other replicas pass a step on before this one gets it.
  uint32_t DepthOf(uint32_t replica) const;

 private:
  std::vector<uint32_t> Below(size_t place) const;
  size_t PlaceOf(uint32_t replica) const;

  std::vector<uint32_t> places_;  // the first is the root
  const uint32_t reader_;
  const uint32_t fanout_;
};

// Ranks that receive equal slabs.
struct ReplicaSet {
  const PlannedRank* plan = nullptr;  // plan of the first rank
  std::vector<uint32_t> ranks;        // of the communicator, ascending
};
// `plans[i]` belongs to rank i of the communicator. Null: it already has its shard.
std::vector<ReplicaSet> FindReplicas(std::span<const PlannedRank* const> plans);

// The fan-out for that many replica sets. A sender with several sets sends each of them few
// copies, so that it is not the bottleneck. With one set, one copy fills its link.
uint32_t FanoutFor(size_t sets);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_REPLICA_TREE_H_
