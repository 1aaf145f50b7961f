// --slab-dir: shards as files in a memory-backed folder, which outlive all processes.
#ifndef CKPTD_SERVER_DAEMON_SLAB_DIR_H_
#define CKPTD_SERVER_DAEMON_SLAB_DIR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/daemon/config.h"

namespace ckptd {

// Makes the folder of this job and rank in --slab-dir, mode 0700. Empty where none is configured.
// Errors: InvalidArgument or FailedPrecondition CONFIG_INVALID if it is missing, on a disk, or
// another user's.
absl::StatusOr<std::string> MakeSlabFolder(const Config& config);

// OK where none is configured, else the error for shards in the memory of a GPU: CONFIG_INVALID.
absl::Status RefuseSlabDirOnGpu(const Config& config);

// Bytes that this daemon may take of `folder`: its part of what is free. Errors: FailedPrecondition
// CONFIG_INVALID if that cannot hold a segment, or is less than a --memory-budget that was given as
// a size; `kept` bytes are this daemon's already.
absl::StatusOr<uint64_t> SlabFolderBytes(const Config& config, const std::string& folder,
                                         uint64_t kept);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_SLAB_DIR_H_
