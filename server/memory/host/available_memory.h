// How much memory this process can still get.
#ifndef CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_
#define CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// The smaller of the machine's MemAvailable and what the memory cgroups (v1 or v2) of this
// process leave: limit less usage, for every group up to the top. Page cache that the kernel
// would drop does not count as usage. Swap is not counted, and limits that cannot be read are
// ignored. Files are read under `root`, which ends in '/' (tests set another one). Thread-safe.
// Errors: Internal if /proc/meminfo is missing.
absl::StatusOr<uint64_t> AvailableMemory(const std::string& root = "/");
// The same for total memory: the smaller of MemTotal and those groups' limits.
absl::StatusOr<uint64_t> TotalMemory(const std::string& root = "/");

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_
