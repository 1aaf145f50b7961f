// How much memory this process can still get.
#ifndef CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_
#define CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd {

// One of the limits that this process is under: the machine's memory, or a control group's limit.
// Each holds for all processes below it.
struct MemoryLevel {
  // Equal in all processes that are under this limit, whatever paths they see. Fit for a file name.
  std::string name;
  uint64_t limit = 0;
  uint64_t left = 0;  // limit less usage
};

// The machine first, named kMachineLevel, then the memory cgroups (v1 or v2) that have a limit.
// Page cache that the kernel would drop does not count as usage. Swap is not counted, and limits
// that cannot be read are ignored. Files are read under `root`, which ends in '/' (tests set
// another one). Thread-safe. Errors: Internal if /proc/meminfo is missing.
inline constexpr char kMachineLevel[] = "machine";
absl::StatusOr<std::vector<MemoryLevel>> MemoryLevels(const std::string& root = "/");

// The least that is left of all MemoryLevels, and its errors.
absl::StatusOr<uint64_t> AvailableMemory(const std::string& root = "/");
// The least of their limits.
absl::StatusOr<uint64_t> TotalMemory(const std::string& root = "/");

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_AVAILABLE_MEMORY_H_
