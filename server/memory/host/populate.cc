#include "server/memory/host/populate.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
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

// Each failed try is slow when memory is too fragmented for huge pages, so this gives up soon.
constexpr int kMaxFailedCollapses = 4;

}  // namespace

// Faults one page in and collapses its huge page around it. That is several times as fast as
// faulting in all 512 pages, because one huge page is zeroed at once.
bool PopulateWork::Collapse(std::byte* page) {
  if (!huge_pages_ || failed_collapses_ >= kMaxFailedCollapses) return false;
  if (::madvise(page, 1, MADV_POPULATE_WRITE) != 0) return false;
  if (::madvise(page, kHugePageBytes, MADV_COLLAPSE) != 0) {
    ++failed_collapses_;
    return false;
  }
  huge_bytes_ += kHugePageBytes;
  return true;
}

void PopulateWork::TakePages() {
  for (;;) {
    if (cancelled_) return;
    const uint64_t at = next_.fetch_add(kHugePageBytes);
    if (at >= memory_.size() || error_ != 0) return;
    std::byte* const page = memory_.data() + at;
    const uint64_t bytes = std::min<uint64_t>(kHugePageBytes, memory_.size() - at);
    if (bytes == kHugePageBytes) Collapse(page);
    // This is needed after a collapse, too, because it may not have mapped the page.
    while (::madvise(page, bytes, MADV_POPULATE_WRITE) != 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      error_ = errno;
      return;
    }
  }
}

void PopulateWork::Join(unsigned threads) {
  const uint64_t pages = (memory_.size() + kHugePageBytes - 1) / kHugePageBytes;
  AtOnce(std::min<uint64_t>(threads, pages), threads, [this](size_t) {
    ++working_;
    TakePages();
    --working_;
    working_.notify_all();
  });
}

void PopulateWork::AwaitOthers() const {
  for (int working = working_; working != 0; working = working_) working_.wait(working);
}

absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                  const PopulateOptions& options) {
  const auto work = std::make_shared<PopulateWork>(memory, options.huge_pages);
  // The node is a preference, so an error is ignored. CheckPreferNode has tested it at start.
  if (options.numa_node.has_value()) PreferNode(memory, *options.numa_node).IgnoreError();
  if (options.on_start != nullptr) options.on_start(work);
  work->Join(options.threads);
  work->AwaitOthers();
  int error = work->error_;
  if (error == EINVAL || error == ENOSYS) {
    // Kernels before 5.14 have no MADV_POPULATE_WRITE. fallocate returns an error if memory is
    // short, while touching the pages would raise SIGBUS.
    error = ::fallocate(fd, 0, 0, static_cast<off_t>(memory.size())) == 0 ? 0 : errno;
  }
  if (error != 0) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     fmt::format("faulting in {} bytes of host memory: {}; free memory on this "
                                 "machine or raise the memory limit of its container",
                                 memory.size(), std::strerror(error)));
  }
  if (work->error_ == 0 && work->next_ < memory.size()) {
    return absl::CancelledError("faulting in host memory: a load needs the machine first");
  }
  return work->huge_bytes_.load();
}

}  // namespace ckptd
