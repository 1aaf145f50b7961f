// Fetches the descriptors of a slab and maps them: the part of the client that
// needs no gRPC. Protocol of the fd socket: the client sends the token's 32 hex
// characters; the daemon answers with messages of a 16-byte header and up to 128
// descriptors each. The connection then stays open: it is the lease.
#ifndef CKPTD_CLIENT_CPP_ATTACH_H_
#define CKPTD_CLIENT_CPP_ATTACH_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/device_memory.h"
#include "common/base/attach_mode.h"
#include "common/base/posix.h"

namespace ckptd {
inline namespace client {

struct AttachRequest {
  std::string fd_socket;                // absolute path of a Unix stream socket
  std::string token;                    // 32 hex characters, good for one use
  std::vector<uint64_t> segment_bytes;  // in slab order; empty for an empty shard
  // UUID of the GPU whose memory it is, in one segment; empty: host memory.
  std::string device_uuid;
  // CUDA_IPC: 64 bytes by which the one segment is opened, in the place of a descriptor.
  std::string ipc_handle;
  uint64_t slab_bytes = 0;  // of device memory; that of host memory is its segments' sum
  AttachMode mode = AttachMode::kShared;
  bool populate = true;  // make the page tables at once instead of by faults
  std::chrono::milliseconds timeout{10'000};
};

// A mapped slab and the connection that holds it. Move-only.
struct Attached {
  UniqueFd lease;
  // One of the two, or none when the slab is empty.
  Mapping mapping;
  DeviceMemory device;
  uint64_t slab_bytes = 0;

  Attached() = default;
  Attached(Attached&&) noexcept = default;
  Attached& operator=(Attached&& other) noexcept;
  ~Attached() { Reset(); }
  // Lets go of the memory, then of the lease: with that the daemon may use the memory again.
  void Reset();
};

// Descriptors of a slab, in segment order, and the connection that holds it.
struct LeasedSegments {
  UniqueFd lease;
  std::vector<UniqueFd> fds;
};

// First half: shows the token, receives the descriptors. Blocking, bounded by
// the timeout. Errors: Unavailable DAEMON_UNREACHABLE, DeadlineExceeded DEADLINE,
// Unauthenticated TOKEN_INVALID and whatever else the daemon says, DataLoss
// INVALID_REPLY for an answer that breaks the protocol.
absl::StatusOr<LeasedSegments> FetchSegments(const AttachRequest& request);

// The same over a connection to that socket, which exists already.
absl::StatusOr<LeasedSegments> FetchSegmentsFrom(UniqueFd connection, const AttachRequest& request,
                                                 std::chrono::steady_clock::time_point deadline);

// Second half: maps the segments back to back, or imports or opens the device memory. Each
// descriptor must be as long as its segment, else nothing is mapped. The lease ends with an error,
// once nothing is copied from the memory any more. Errors: DataLoss
// INVALID_REPLY for what does not fit together, those of MapSlab and of DeviceMemory.
absl::StatusOr<Attached> MapSegments(LeasedSegments segments, const AttachRequest& request);

// Both halves.
absl::StatusOr<Attached> Attach(const AttachRequest& request);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ATTACH_H_
