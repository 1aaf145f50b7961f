// Pinned host memory on its way to GPUs: a fixed number of slots, filled by reader
// threads, emptied by the GPUs' copy engines.
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
  // A copy of one slot takes a millisecond; who has none for this long stands still.
  static constexpr std::chrono::seconds kPatience{10};

  class Slot {
   public:
    std::span<std::byte> bytes() const { return bytes_; }

   private:
    friend class StagingPool;
    std::span<std::byte> bytes_;
    const void* user_ = nullptr;  // who had it last
    // One per device that has ever copied from this slot; those recorded are awaited.
    std::map<std::shared_ptr<CudaDevice>, CUevent> events_;
    std::vector<std::shared_ptr<CudaDevice>> recorded_;
  };

  // Pins `bytes`, rounded down to whole slots and at least two. `home`'s context is
  // used for that. `patience`: of Take. Errors: NO_MEMORY, DEVICE_FAILED.
  static absl::StatusOr<std::shared_ptr<StagingPool>> Create(
      std::shared_ptr<CudaDevice> home, uint64_t bytes,
      std::chrono::milliseconds patience = kPatience);
  // Does not wait: memory that a GPU may still read is freed once that work has ended. The streams
  // of all copies are gone by then (CudaDevice::Retire).
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // A slot whose earlier copies have ended; waits for one. Rather one that `user`, any
  // address, had before: this thread's caches have it. Errors: DEVICE_FAILED,
  // DeadlineExceeded DEADLINE when no copy ends any more, or others keep all slots.
  absl::StatusOr<Slot*> Take(const void* user);
  // Notes that copies from the slot were put on `stream` of that device.
  absl::Status Record(Slot& slot, const std::shared_ptr<CudaDevice>& device, CUstream stream);
  // The slot may be filled again once the recorded copies have ended.
  void Give(Slot* slot);
  // Whether every Take from now on answers an error.
  bool Broken();

  uint64_t bytes() const { return slots_.size() * kSlotBytes; }
  // Who fills one slot while the GPU empties another does not wait.
  unsigned Lanes() const { return static_cast<unsigned>(slots_.size() / 2); }

 private:
  StagingPool(std::shared_ptr<CudaDevice> home, std::byte* memory, size_t slots,
              std::chrono::milliseconds patience);
  Slot* TakeFree(const void* user) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why there has been no slot for so long.
  absl::Status Stalled();
  // Whether the slot's copies have ended; an error ends all taking.
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
