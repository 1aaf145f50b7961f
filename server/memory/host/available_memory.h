// How much memory this process can really get, and still get.
#ifndef CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_
#define CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// Bytes: the smaller of the machine's MemAvailable and, for every memory cgroup
// (v1 or v2) this process is in, up to the top, its limit less its usage, where
// page cache that the kernel would drop is not counted as used. Swap is not
// counted. Files are looked up under `root`, which ends in '/' ("/" but in
// tests). Limits that cannot be read are none. Thread-safe. Errors: Internal
// when /proc/meminfo is not there.
absl::StatusOr<uint64_t> AvailableMemory(const std::string& root = "/");
// The same of all there is: the smaller of MemTotal and those groups' limits.
absl::StatusOr<uint64_t> TotalMemory(const std::string& root = "/");

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_
