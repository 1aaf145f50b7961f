// The leader's call to take part in a scatter: who reads which step. Plain values.
#ifndef CKPTD_SERVER_PROTOCOL_SCATTER_CALL_H_
#define CKPTD_SERVER_PROTOCOL_SCATTER_CALL_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/scatter_order.h"

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

// Digest of all that decides which operations this rank issues, and in which order. `order` is
// OrderScatter of the index and call.size; `rank_digest` that of the rank's plan.
uint64_t ScatterDigest(const ScatterCall& call, const ScatterOrder& order, uint64_t rank_digest);
// Errors: InvalidArgument INVALID_REQUEST for a call that no leader makes.
absl::Status CheckScatterCall(const ScatterCall& call);

}  // namespace ckptd

#endif  // CKPTD_SERVER_PROTOCOL_SCATTER_CALL_H_
