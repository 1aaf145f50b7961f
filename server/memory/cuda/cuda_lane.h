// A reader thread's way into the memory of GPUs: bytes are gathered in pinned slots, and
// copied from there by copy engines, or fetched by kernels, on streams of this lane.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_LANE_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_LANE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/cuda/stream.h"
#include "server/memory/cuda/slot_tasks.h"
#include "server/memory/cuda/staging_pool.h"
#include "server/memory/slab_view.h"

namespace ckptd {

class CudaLane final : public StagingLane {
 public:
  explicit CudaLane(std::shared_ptr<StagingPool> pool) : pool_(std::move(pool)) {}
  // Does not wait a second time for what has not ended.
  ~CudaLane() override {
    if (!stands_still_ || slot_ != nullptr) static_cast<void>(Finish());
  }

  std::span<std::byte> Stage(std::span<const StagedPlace> places, uint64_t into,
                             uint64_t bytes) override;
  bool TakesBlocks(const StagedMemory& memory) const override;
  std::span<std::byte> StageBlock(uint64_t begin, size_t bytes) override;
  void Take(StagedMemory& memory, const BlockCopy& copy) override;
  absl::Status Finish() override;
  absl::Status status() const override { return error_; }

 private:
  // A stretch of the slot that becomes one copy to each of its places.
  struct Extent {
    size_t first = 0;  // of `places_`
    size_t places = 0;
    size_t at = 0;  // in the slot
    size_t used = 0;
    size_t room = 0;
  };

  Extent* Open(std::span<const StagedPlace> places, uint64_t into, uint64_t bytes);
  Extent* OpenNew(std::span<const StagedPlace> places, uint64_t into, uint64_t bytes);
  bool GoesOn(const Extent& extent, std::span<const StagedPlace> places, uint64_t into) const;
  // A slot that has so many bytes left; false after an error.
  bool HasRoom(size_t bytes);
  // Of the slot, for extents and blocks.
  size_t Capacity() const;
  size_t RoomFor(uint64_t bytes) const;
  std::span<std::byte> Fail(absl::Status status);
  absl::Status Submit();
  absl::Status Copy(const Extent& extent, const StagedPlace& to);
  absl::StatusOr<CUstream> StreamOf(const std::shared_ptr<CudaDevice>& device);

  const std::shared_ptr<StagingPool> pool_;
  StagingPool::Slot* slot_ = nullptr;
  size_t taken_ = 0;             // of the slot
  std::vector<Extent> extents_;  // of the slot
  std::vector<StagedPlace> places_;  // of the extents
  std::map<StagedMemory*, size_t> open_;  // which of them grows, by its first place
  bool has_blocks_ = false;      // in the slot, whose end then is for tables of tasks
  kernels::SourceBlock block_;   // the last of them
  SlotTasks tasks_;              // of all of them
  std::map<std::shared_ptr<CudaDevice>, CudaStream> streams_;
  absl::Status error_;
  bool stands_still_ = false;  // something was waited for long enough
  std::unique_ptr<std::byte[]> nowhere_;  // once the device has failed
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_LANE_H_
