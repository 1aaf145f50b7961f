// Real host memory for tests, in segments of one huge page (2 MiB).
#ifndef CKPTD_TESTS_TESTING_SMALL_MEMORY_H_
#define CKPTD_TESTS_TESTING_SMALL_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "server/memory/host/host_memory.h"

namespace ckptd {

inline constexpr uint64_t kSmallSegment = uint64_t{2} << 20;  // bytes

// A backend whose budget is that many segments, whatever the machine has left. Not empty `folder`:
// they are files there.
inline std::unique_ptr<HostMemory> MakeSmallMemory(uint64_t segments, const std::string& folder = "") {
  HostMemoryOptions options;
  options.budget_bytes = segments * kSmallSegment;
  options.segment_bytes = kSmallSegment;
  options.huge_pages = false;
  options.populate_threads = 1;
  options.folder = folder;
  options.available_memory = []() -> absl::StatusOr<uint64_t> { return uint64_t{1} << 40; };
  return HostMemory::Create(std::move(options)).value();
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_SMALL_MEMORY_H_
