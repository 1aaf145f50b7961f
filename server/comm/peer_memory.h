// Seam: how a reading rank writes into the slabs of other ranks. Backends:
// server/comm/host (same host: it maps their memory). To memory that cannot be
// mapped, bytes are sent instead (TransferSink in server/transfer/frames.h).
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
  std::string incarnation;  // of that daemon process: ids of another one mean nothing
  std::string endpoint;     // Unix socket on which it hands its memory to peers
  std::string host;         // its host's identity; memory is mapped on equal hosts only
  std::string device;       // UUID of the GPU whose memory it is; empty: host memory
  std::vector<PeerSegment> segments;
};

// Called by the load worker only.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  // Writable view of the slab; valid until Forget of that process or destruction
  // of this object. Mappings of host memory are kept and reused by later loads; a
  // view of device memory keeps its own alive. Errors name the rank:
  // FailedPrecondition when its memory cannot be mapped from here (another host, a
  // socket that cannot be reached, a GPU that is not visible), Unavailable RANK_LOST
  // when it does not answer by the deadline.
  virtual absl::StatusOr<SlabView> Map(const PeerSlab& slab,
                                       std::chrono::steady_clock::time_point deadline) = 0;
  // Drops every mapping of that process (it left the group); those of another one that
  // is that rank now stay.
  virtual void Forget(uint32_t rank, const std::string& incarnation) = 0;
  // Drops cached mappings of `rank` except those of the given segment ids (what
  // that daemon still owns): its released memory must not be held by us. Bytes that were
  // mapped of it.
  virtual uint64_t KeepOnly(uint32_t rank, const std::vector<uint64_t>& segment_ids) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_PEER_MEMORY_H_
