// Which memory this daemon keeps shards in, the backend for it, and what carries bytes
// between such memory. memory_tier.cc alone names these backends.
#ifndef CKPTD_SERVER_DAEMON_MEMORY_TIER_H_
#define CKPTD_SERVER_DAEMON_MEMORY_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "server/comm/group_comm.h"
#include "server/comm/host/host_peer_memory.h"
#include "server/daemon/config.h"
#include "server/memory/memory.h"
#include "server/memory/ready_memory.h"

namespace ckptd {

struct MemoryTier {
  std::unique_ptr<MemoryBackend> backend;
  std::string reason;  // why this tier, for people
  // Descriptors of the backend's segments, for daemons of the group on this host. They
  // and `import` use the backend, which outlives them.
  std::function<absl::StatusOr<UniqueFd>(uint64_t segment_id)> segment_fd;
  HostPeerMemory::ImportDevice import;  // null: device memory cannot be reached
  // Host memory behind the GPU's, for pristine copies; null: none.
  std::unique_ptr<MemoryBackend> host_tier;
  std::vector<ReadyMemory*> ready;  // of these two, what they have
  // Communicators between GPUs; null: none, because of `no_comms`.
  std::unique_ptr<GroupComms> comms;
  std::string no_comms;
};

// As config.memory asks: "cuda" is an error where there is no GPU, "auto" then means
// host; likewise "nccl" of config.comm. Errors: NO_NCCL, NO_DEVICE, DEVICE_FAILED, NO_MEMORY, CONFIG_INVALID.
absl::StatusOr<MemoryTier> MakeMemoryTier(const Config& config);

// What that would find on this machine, as keys and values for people: the tier and why, each GPU
// and which is config.device's, NCCL, which may be none. Allocates nothing and makes no context.
// Errors: NO_NCCL, as in a group of several, NO_DEVICE, DEVICE_FAILED.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> DescribeMachine(
    const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_MEMORY_TIER_H_
