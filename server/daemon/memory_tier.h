// Chooses the memory for this daemon's shards, its backend, and what carries bytes between such
// memory. Only memory_tier.cc names these backends.
#ifndef CKPTD_SERVER_DAEMON_MEMORY_TIER_H_
#define CKPTD_SERVER_DAEMON_MEMORY_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "server/comm/group_comm.h"
#include "server/comm/host/host_peer_memory.h"
#include "server/daemon/config.h"
#include "server/memory/memory.h"
#include "server/memory/ready_memory.h"

namespace ckptd {

// Memory in slabs, by the place it is in.
struct KeptBytes {
  uint64_t host = 0;
  uint64_t device = 0;
};

struct MemoryTier {
  std::unique_ptr<MemoryBackend> backend;
  std::string reason;  // reason of the choice, for people
  // Gives descriptors of the backend's segments to daemons of the group on this host. This and
  // `import` use the backend, which must outlive them.
  std::function<absl::StatusOr<UniqueFd>(uint64_t segment_id)> segment_fd;
  HostPeerMemory::ImportDevice import;  // null: device memory cannot be reached
  // Host memory behind the GPU's, for pristine copies. Null: none.
  std::unique_ptr<MemoryBackend> host_tier;
  std::vector<ReadyMemory*> ready;  // memory that these two backends keep ready
  // Communicators between GPUs. Null: none, and `no_comms` is the reason.
  std::unique_ptr<GroupComms> comms;
  std::string no_comms;
};

// As config.memory asks: "cuda" is an error without a GPU, "auto" then means host. The same holds
// for "nccl" in config.comm. Errors: NO_NCCL, NO_DEVICE, DEVICE_FAILED, NO_MEMORY,
// CONFIG_INVALID.
// An earlier process of this rank has left `kept`, for which the budget has room.
absl::StatusOr<MemoryTier> MakeMemoryTier(const Config& config, KeptBytes kept = {});

// OK if this machine and its control groups have `bytes` for tables of tensors, and some more for
// everything else. Errors: ResourceExhausted NO_MEMORY.
absl::Status HasRoomForTables(uint64_t bytes);

// What MakeMemoryTier would find on this machine, as keys and values for people: the tier and its
// reason, each GPU, which one is config.device's, and NCCL, if there is one. Allocates nothing
// and makes no context. Errors: NO_NCCL, as in a group of several, NO_DEVICE, DEVICE_FAILED.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> DescribeMachine(
    const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_MEMORY_TIER_H_
