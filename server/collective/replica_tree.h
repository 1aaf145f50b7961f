// How the bytes of a scatter are passed on among ranks that receive the same. Plain values: every
// rank comes to the same answers.
#ifndef CKPTD_SERVER_COLLECTIVE_REPLICA_TREE_H_
#define CKPTD_SERVER_COLLECTIVE_REPLICA_TREE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/plan/group_plan.h"

namespace ckptd {

// How one reader's steps reach replicas: from the reader to the first, or, where it is a
// replica itself, from it on; each passes them on to `fanout` others.
class ReplicaTree {
 public:
  ReplicaTree(std::span<const uint32_t> replicas, uint32_t reader, uint32_t fanout);

  // Whom the reader sends to. Empty: it is the only one.
  std::vector<uint32_t> FromReader() const;
  // Of a replica other than the reader: from whom it receives, and to whom it sends.
  uint32_t ParentOf(uint32_t replica) const;
  std::vector<uint32_t> ChildrenOf(uint32_t replica) const;
  // How many others a step goes through before it comes to this replica.
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
  const PlannedRank* plan = nullptr;  // of the first
  std::vector<uint32_t> ranks;        // of the communicator, ascending
};
// `plans[i]` is that of rank i of the communicator; null: it has its shard.
std::vector<ReplicaSet> FindReplicas(std::span<const PlannedRank* const> plans);

// A sender that has copies to make for several sets must not make them all by itself; one
// that has but one set fills its link with one copy.
uint32_t FanoutFor(size_t sets);

}  // namespace ckptd

#endif  // CKPTD_SERVER_COLLECTIVE_REPLICA_TREE_H_
