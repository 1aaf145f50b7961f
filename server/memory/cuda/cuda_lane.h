// Writes to the memory of GPUs for one reader thread. Bytes are gathered in pinned slots. From
// there copy engines copy them, or kernels fetch them, on streams of this lane.
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
  // If a copy has not ended in time, the destructor does not wait for it a second time.
  ~CudaLane() override {
    if (!timed_out_ || slot_ != nullptr) static_cast<void>(Finish());
  }

  std::span<std::byte> Stage(std::span<const StagedPlace> places, uint64_t into,
                             uint64_t bytes) override;
  bool CanCopyFromBlocks(const StagedMemory& memory) const override;
  std::span<std::byte> StageBlock(uint64_t begin, size_t bytes) override;
  void CopyFromBlock(StagedMemory& memory, const BlockCopy& copy) override;
  absl::Status Finish() override;
  absl::Status status() const override { return error_; }

 private:
  // A part of the slot that becomes one copy to each of its places.
  struct Extent {
    size_t first = 0;  // index into `places_`
    size_t places = 0;
    size_t at = 0;  // position in the slot
    size_t used = 0;
    size_t room = 0;
  };

  Extent* Open(std::span<const StagedPlace> places, uint64_t into, uint64_t bytes);
  Extent* OpenNew(std::span<const StagedPlace> places, uint64_t into, uint64_t bytes);
  bool Continues(const Extent& extent, std::span<const StagedPlace> places, uint64_t into) const;
  // Makes sure that there is a slot with at least `bytes` left. False after an error.
  bool HasRoom(size_t bytes);
  // Bytes of the slot for extents and blocks.
  size_t Capacity() const;
  size_t RoomFor(uint64_t bytes) const;
  std::span<std::byte> Fail(absl::Status status);
  absl::Status Submit();
  absl::Status Copy(const Extent& extent, const StagedPlace& to);
  absl::StatusOr<CUstream> StreamOf(const std::shared_ptr<CudaDevice>& device);

  const std::shared_ptr<StagingPool> pool_;
  StagingPool::Slot* slot_ = nullptr;
  size_t used_bytes_ = 0;             // of the slot
  std::vector<Extent> extents_;  // in the slot
  std::vector<StagedPlace> places_;  // of the extents
  std::map<StagedMemory*, size_t> open_extents_;  // by first place: the extent that may grow
  bool has_blocks_ = false;      // the slot has blocks, so its end is reserved for tables of tasks
  kernels::SourceBlock block_;   // the block staged last
  SlotTasks tasks_;              // of all blocks
  std::map<std::shared_ptr<CudaDevice>, CudaStream> streams_;
  absl::Status error_;
  bool timed_out_ = false;  // a wait has ended without success
  // where Stage lets callers write once the device has failed
  std::unique_ptr<std::byte[]> discarded_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_LANE_H_
