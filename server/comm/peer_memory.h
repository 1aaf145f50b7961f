// Seam: how a reading rank writes into the slabs of other ranks. Backends: server/comm/host (same
// host: it maps their memory). If memory cannot be mapped, bytes are sent instead (TransferSink
// in server/transfer/frames.h).
#ifndef CKPTD_SERVER_COMM_PEER_MEMORY_H_
#define CKPTD_SERVER_COMM_PEER_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// Slab of another rank, as that rank describes it when it prepares a load.
struct PeerSlab {
  struct PeerSegment {
    uint64_t id = 0;     // unique for the life of that daemon
    uint64_t bytes = 0;  // part of the segment that the slab uses
  };
  uint32_t rank = 0;
  std::string incarnation;  // names that daemon process; segment ids are valid for one process only
  std::string endpoint;     // Unix socket on which it hands its memory to peers
  std::string host;         // identity of its host; only memory of the same host can be mapped
  std::string device;       // UUID of the GPU; empty: host memory
  std::vector<PeerSegment> segments;
};

// Only the load worker calls it.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  // A writable view of the slab, valid until Forget of that process or destruction of this
  // object. Mappings of host memory are kept for later loads. A view of device memory keeps its
  // own mapping. Errors name the rank: FailedPrecondition if its memory cannot be mapped from
  // here (another host, an unreachable socket, a GPU that is not visible), Unavailable RANK_LOST
  // if it does not answer by the deadline.
  virtual absl::StatusOr<SlabView> Map(const PeerSlab& slab,
                                       std::chrono::steady_clock::time_point deadline) = 0;
  // Drops every mapping of that process, which has left the group. Mappings of a new process with
  // the same rank stay.
  virtual void Forget(uint32_t rank, const std::string& incarnation) = 0;
  // Drops cached mappings of `rank`, except for the segments that its daemon still owns, because
  // our mappings would keep released memory alive. Returns the bytes that were unmapped.
  virtual uint64_t KeepOnly(uint32_t rank, const std::vector<uint64_t>& segment_ids) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_PEER_MEMORY_H_
