// How a load's bytes travel over a communicator: who reads which step, and who passes it on
// to whom. Plain values: every rank comes to the same answers.
#ifndef CKPTD_SERVER_CORE_SCATTER_H_
#define CKPTD_SERVER_CORE_SCATTER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/group_plan.h"
#include "common/layout/scatter_order.h"

namespace ckptd {

// What the leader tells each rank that takes part. Ranks are the communicator's, but for
// `ranks`.
struct ScatterCall {
  std::string comm_id;             // the communicator to join, or to go on with
  uint32_t rank = 0;               // its own
  std::vector<uint32_t> ranks;     // of the group, by rank of the communicator
  std::vector<uint32_t> readers;   // step k is read by number k modulo their count
  std::vector<uint32_t> replicas;  // whose slabs equal its own, itself too; ascending
  uint32_t fanout = 1;             // to how many a replica passes on
  ScatterSize size;
  std::vector<uint32_t> whole;     // tensors of the index that all hold: broadcast; ascending
  uint64_t digest = 0;             // ScatterDigest: checked before the first operation
};

// Whether several ranks read and rank 0 is one of those of the communicator. A rank that opens its
// files says so in its heartbeats, so rank 0 knows, and nobody else, whether the others can join.
bool LeaderKnowsReaders(const ScatterCall& call);
// How long all may take to start a library and find each other, once nobody opens files any more.
std::chrono::milliseconds JoinPatience(const ScatterCall& call);

// Of all that decides which operations this rank issues, in which order. `order` is
// OrderScatter of the index and call.size; `rank_digest` that of the rank's plan.
uint64_t ScatterDigest(const ScatterCall& call, const ScatterOrder& order, uint64_t rank_digest);
// Errors: InvalidArgument INVALID_REQUEST for a call that no leader makes.
absl::Status CheckScatterCall(const ScatterCall& call);

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

#endif  // CKPTD_SERVER_CORE_SCATTER_H_
