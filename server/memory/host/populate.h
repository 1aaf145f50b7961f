// Faulting fresh shared memory in, in huge pages where the kernel has them.
#ifndef CKPTD_SERVER_MEMORY_HOST_POPULATE_H_
#define CKPTD_SERVER_MEMORY_HOST_POPULATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

namespace ckptd {

struct PopulateOptions {
  bool huge_pages = true;
  unsigned threads = 1;
  // See numa.h; none: wherever the kernel likes.
  std::optional<unsigned> numa_node = {};
};

// Makes every byte of `memory` present in memory and in our page tables. It is a
// fresh shared mapping of `fd`, whole from its offset 0, aligned to
// kHugePageBytes. Returns how many bytes huge pages hold. Blocking. Errors:
// ResourceExhausted NO_MEMORY; part of the memory may be present then.
absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                  const PopulateOptions& options);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_POPULATE_H_
