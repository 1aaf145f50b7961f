// Pinned host memory for bytes on their way to GPUs: a fixed number of slots. Reader threads fill
// them, and copy engines or kernels of the GPUs empty them.
#ifndef CKPTD_SERVER_MEMORY_CUDA_STAGING_POOL_H_
#define CKPTD_SERVER_MEMORY_CUDA_STAGING_POOL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/cuda/device.h"

namespace ckptd {

// Thread-safe. Its slots serve the copies to all GPUs of this process.
class StagingPool {
 public:
  static constexpr uint64_t kSlotBytes = uint64_t{4} << 20;
  // A copy of one slot takes a millisecond. A device that frees none for this long has stalled.
  static constexpr std::chrono::seconds kPatience{10};

  class Slot {
   public:
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class StagingPool;
    std::span<std::byte> bytes_;
    const void* user_ = nullptr;  // the user that had it last
    // One event per device that has ever copied from this slot. The slot waits for the recorded
    // ones.
    std::map<std::shared_ptr<CudaDevice>, CUevent> events_;
    std::vector<std::shared_ptr<CudaDevice>> recorded_;
  };

  // Pins `bytes`, rounded down to whole slots, at least two, in the context of `home`.
  // `patience`: how long Take waits. Errors: NO_MEMORY, DEVICE_FAILED.
  static absl::StatusOr<std::shared_ptr<StagingPool>> Create(
      std::shared_ptr<CudaDevice> home, uint64_t bytes,
      std::chrono::milliseconds patience = kPatience);
  // Does not wait: memory that a GPU may still read is freed when that work has ended. The
  // streams of all copies must be gone (CudaDevice::Retire).
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // Waits for a slot whose earlier copies have ended. Prefers one that `user` (any address) had
  // before, because this thread's caches have it. Errors: DEVICE_FAILED; DeadlineExceeded
  // DEADLINE if no copy ends, or other threads keep all slots.
  absl::StatusOr<Slot*> Take(const void* user);
  // Records that copies from the slot were put on `stream` of that device.
  absl::Status Record(Slot& slot, const std::shared_ptr<CudaDevice>& device, CUstream stream);
  // Gives the slot back. It can be taken again once the recorded copies have ended.
  void Give(Slot* slot);
  // Whether every further Take returns an error.
  bool Broken();

  uint64_t bytes() const { return slots_.size() * kSlotBytes; }
  // How many threads can fill one slot each while the GPU empties another.
  unsigned Lanes() const { return static_cast<unsigned>(slots_.size() / 2); }

 private:
  StagingPool(std::shared_ptr<CudaDevice> home, std::byte* memory, size_t slots,
              std::chrono::milliseconds patience);
  Slot* TakeFree(const void* user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The error for a Take that got no slot in time.
  absl::Status Stalled();
  // Whether the slot's copies have ended. An error makes all further Takes fail.
  bool Ended(Slot& slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<CudaDevice> home_;
  std::byte* const memory_;
  const std::chrono::milliseconds patience_;
  std::vector<Slot> slots_;
  Mutex mutex_;
  std::vector<Slot*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Slot*> in_flight_ ABSL_GUARDED_BY(mutex_);
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_STAGING_POOL_H_
