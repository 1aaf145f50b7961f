#include "server/memory/host/populate.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "common/base/at_once.h"
#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "fmt/format.h"
#include "server/memory/host/numa.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace ckptd {
namespace {

// Memory too fragmented for huge pages makes each try slow: give up soon.
constexpr int kMaxFailedCollapses = 4;

// What the threads of one Populate share.
struct Shared {
  std::span<std::byte> memory;
  bool huge_pages = true;
  std::atomic<uint64_t> next = 0;  // the first huge page nobody has taken
  std::atomic<uint64_t> huge_bytes = 0;
  std::atomic<int> failed_collapses = 0;
  std::atomic<int> error = 0;
};

// One page faulted in and the rest of its huge page collapsed around it: several
// times as fast as faulting all 512 pages, because one huge page is zeroed.
bool Collapse(Shared& shared, std::byte* page) {
  if (!shared.huge_pages || shared.failed_collapses >= kMaxFailedCollapses) return false;
  if (::madvise(page, 1, MADV_POPULATE_WRITE) != 0) return false;
  if (::madvise(page, kHugePageBytes, MADV_COLLAPSE) != 0) {
    ++shared.failed_collapses;
    return false;
  }
  shared.huge_bytes += kHugePageBytes;
  return true;
}

void Work(Shared& shared) {
  for (;;) {
    const uint64_t at = shared.next.fetch_add(kHugePageBytes);
    if (at >= shared.memory.size() || shared.error != 0) return;
    std::byte* const page = shared.memory.data() + at;
    const uint64_t bytes = std::min<uint64_t>(kHugePageBytes, shared.memory.size() - at);
    if (bytes == kHugePageBytes) Collapse(shared, page);
    // Also after a collapse: it need not have mapped the page.
    while (::madvise(page, bytes, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      shared.error = errno;
      return;
    }
  }
}

void WorkInThreads(Shared& shared, unsigned threads) {
  const uint64_t pages = (shared.memory.size() + kHugePageBytes - 1) / kHugePageBytes;
  AtOnce(std::min<uint64_t>(threads, pages), threads, [&shared](size_t) { Work(shared); });
}

}  // namespace

absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                  const PopulateOptions& options) {
  Shared shared;
  shared.memory = memory;
  shared.huge_pages = options.huge_pages;
  // A wish: memory elsewhere is slower, not wrong. Whether the kernel obeys is checked at start.
  if (options.numa_node.has_value()) PreferNode(memory, *options.numa_node).IgnoreError();
  WorkInThreads(shared, options.threads);
  int error = shared.error;
  if (error == EINVAL || error == ENOSYS) {
    // Kernels before 5.14: have the file allocate its pages, an error it can
    // return, where touching them would be SIGBUS.
    error = ::fallocate(fd, 0, 0, static_cast<off_t>(memory.size())) == 0 ? 0 : errno;
  }
  if (error != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     fmt::format("faulting in {} bytes of host memory: {}; free memory on this "
                                 "machine or raise the memory limit of its container",
                                 memory.size(), std::strerror(error)));
  }
  return shared.huge_bytes.load();
}

}  // namespace ckptd
