// Faulting fresh shared memory in, in huge pages where the kernel has them.
#ifndef CKPTD_SERVER_MEMORY_HOST_POPULATE_H_
#define CKPTD_SERVER_MEMORY_HOST_POPULATE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

namespace ckptd {

struct PopulateOptions;

// A range that is being faulted in, page by huge page. Others may join in: a thread of low
// priority would keep those waiting who need the memory. Thread-safe.
class PopulateWork {
 public:
  PopulateWork(std::span<std::byte> memory, bool huge_pages)
      : memory_(memory), huge_pages_(huge_pages) {}

  // Takes pages until none is left, in up to `threads` threads.
  void Join(unsigned threads);
  // Populate soon returns Cancelled, unless all pages were taken already.
  void Cancel() { cancelled_ = true; }

 private:
  friend absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                           const PopulateOptions& options);
  void TakePages();
  bool Collapse(std::byte* page);
  // Returns once nobody touches the memory any more; whoever comes later does not.
  void AwaitOthers() const;

  const std::span<std::byte> memory_;
  const bool huge_pages_;
  std::atomic<uint64_t> next_ = 0;  // the first huge page nobody has taken
  std::atomic<int> working_ = 0;    // threads that may touch the memory
  std::atomic<uint64_t> huge_bytes_ = 0;
  std::atomic<int> failed_collapses_ = 0;
  std::atomic<int> error_ = 0;
  std::atomic<bool> cancelled_ = false;
};

struct PopulateOptions {
  bool huge_pages = true;
  unsigned threads = 1;
  // See numa.h; none: wherever the kernel likes.
  std::optional<unsigned> numa_node = {};
  // Told of the work before it begins, so that others can join in.
  std::function<void(std::shared_ptr<PopulateWork>)> on_start = nullptr;
};

// Makes every byte of `memory` present in memory and in our page tables. It is a
// fresh shared mapping of `fd`, whole from its offset 0, aligned to
// kHugePageBytes. Returns how many bytes huge pages hold. Blocking. Errors:
// ResourceExhausted NO_MEMORY, Cancelled (see PopulateWork::Cancel); part of the memory may be
// present then.
absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                  const PopulateOptions& options);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_POPULATE_H_
