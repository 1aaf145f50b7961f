// Faults fresh shared memory in, in huge pages if the kernel has them.
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

// A range that is being faulted in, one huge page after the other. Other threads may join,
// because a thread of low priority would keep them waiting for the memory. Thread-safe.
class PopulateWork {
 public:
  PopulateWork(std::span<std::byte> memory, bool huge_pages)
      : memory_(memory), huge_pages_(huge_pages) {}

  // Faults pages in until none is left, with up to `threads` threads.
  void Join(unsigned threads);
  // Makes Populate return Cancelled soon, unless all pages were taken already.
  void Cancel() { cancelled_ = true; }

 private:
  friend absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                           const PopulateOptions& options);
  void TakePages();
  bool Collapse(std::byte* page);
  // Returns when no thread touches the memory any more. Threads that join later do not touch it.
  void AwaitOthers() const;

  const std::span<std::byte> memory_;
  const bool huge_pages_;
  std::atomic<uint64_t> next_ = 0;  // the first huge page that nobody has taken
  std::atomic<int> working_ = 0;    // threads that may touch the memory
  std::atomic<uint64_t> huge_bytes_ = 0;
  std::atomic<int> failed_collapses_ = 0;
  std::atomic<int> error_ = 0;
  std::atomic<bool> cancelled_ = false;
};

struct PopulateOptions {
  bool huge_pages = true;
  unsigned threads = 1;
  // See numa.h. None: the kernel chooses.
  std::optional<unsigned> numa_node = {};
  // Gets the work before it begins, so that others can join.
  std::function<void(std::shared_ptr<PopulateWork>)> on_start = nullptr;
};

// Makes every byte of `memory` present in memory and in our page tables. `memory` must be a fresh
// shared mapping of all of `fd`, aligned to kHugePageBytes. Returns how many bytes are in huge
// pages. Blocking. Errors: ResourceExhausted NO_MEMORY, Cancelled (see PopulateWork::Cancel).
// Part of the memory may be present then.
absl::StatusOr<uint64_t> Populate(int fd, std::span<std::byte> memory,
                                  const PopulateOptions& options);

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_POPULATE_H_
