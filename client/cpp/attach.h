// Fetches the descriptors of a slab and maps them: the part of the client that needs no gRPC.
// Protocol of the fd socket: the client sends the token's 32 hex characters. The daemon answers
// with messages of a 16-byte header and up to 128 descriptors each. The connection then stays
// open: it is the lease.
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
  std::string token;                    // 32 hex characters, valid once
  std::vector<uint64_t> segment_bytes;  // in slab order; empty for an empty shard
  // UUID of the GPU that has the memory, in one segment. Empty: host memory.
  std::string device_uuid;
  // CUDA_IPC: 64 bytes that open the segment, instead of a descriptor.
  std::string ipc_handle;
  uint64_t slab_bytes = 0;  // for device memory; host memory has the sum of its segments
  AttachMode mode = AttachMode::kShared;
  bool populate = true;  // fill the page tables at once instead of by faults
  std::chrono::milliseconds timeout{10'000};
};

// A mapped slab and the connection that is its lease. Move-only.
struct Attached {
  UniqueFd lease;
  // One of these is set, or none if the slab is empty.
  Mapping mapping;
  DeviceMemory device;
  uint64_t slab_bytes = 0;

  Attached() = default;
  Attached(Attached&&) noexcept = default;
  Attached& operator=(Attached&& other) noexcept;
  ~Attached() { Reset(); }
  // Frees the memory, then ends the lease. After that the daemon may reuse the memory.
  void Reset();
};

// Descriptors of a slab, in segment order, and the connection that is its lease.
struct LeasedSegments {
  UniqueFd lease;
  std::vector<UniqueFd> fds;
};

// First half: sends the token and receives the descriptors. Blocks for at most the timeout.
// Errors: Unavailable DAEMON_UNREACHABLE, DeadlineExceeded DEADLINE, Unauthenticated
// TOKEN_INVALID and other errors of the daemon, DataLoss INVALID_REPLY for an answer that
// violates the protocol.
absl::StatusOr<LeasedSegments> FetchSegments(const AttachRequest& request);

// The same over an open connection to that socket.
absl::StatusOr<LeasedSegments> FetchSegmentsFrom(UniqueFd connection, const AttachRequest& request,
                                                 std::chrono::steady_clock::time_point deadline);

// Second half: maps the segments back to back, or imports or opens the device memory. Each
// descriptor must be as long as its segment. After an error nothing is mapped, and the lease ends
// as soon as no copy uses the memory. Errors: DataLoss INVALID_REPLY for inconsistent values,
// those of MapSlab and of DeviceMemory.
absl::StatusOr<Attached> MapSegments(LeasedSegments segments, const AttachRequest& request);

// Both halves.
absl::StatusOr<Attached> Attach(const AttachRequest& request);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_ATTACH_H_
