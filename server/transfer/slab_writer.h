// Writes to the slabs of a transfer's targets for one thread: to their memory itself, or to
// staging memory that is then copied to the device.
#ifndef CKPTD_SERVER_TRANSFER_SLAB_WRITER_H_
#define CKPTD_SERVER_TRANSFER_SLAB_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/transfer/slab_map.h"

namespace ckptd {

// Not thread-safe: one per thread. The maps must outlive it.
class SlabWriter {
 public:
  // Errors: StagedMemory::OpenLane's.
  static absl::StatusOr<SlabWriter> Open(std::span<const SlabMap> slabs);

  // Calls visit(std::byte* to, size_t bytes) for each piece of memory of [offset, offset + bytes)
  // of slab number `slab`, in order. `visit` fills it.
  template <typename Visit>
  void ForEach(size_t slab, uint64_t offset, uint64_t bytes, const Visit& visit) {
    const SlabMap& map = slabs_[slab];
    if (map.staged() == nullptr) return map.ForEach(offset, bytes, visit);
    const StagedPlace place = PlaceOf(slab, offset);
    ForAll({&place, 1}, 0, bytes, visit);
  }

  bool Stages(size_t slab) const { return slabs_[slab].staged() != nullptr; }
  // The place of a byte in a staged slab, for ForAll.
  StagedPlace PlaceOf(size_t slab, uint64_t offset) const {
    return {slabs_[slab].staged(), offset};
  }
  // As ForEach, once for all `places`: for the bytes that begin `into` bytes after each.
  template <typename Visit>
  void ForAll(std::span<const StagedPlace> places, uint64_t into, uint64_t bytes,
              const Visit& visit) {
    while (bytes > 0) {
      const std::span<std::byte> room = lane_->Stage(places, into, bytes);
      visit(room.data(), room.size());
      into += room.size();
      bytes -= room.size();
    }
  }

  // Whether the slab's device can copy out of staged blocks; see StagingLane.
  bool CanCopyFromBlocks(size_t slab) const {
    const StagedMemory* const memory = slabs_[slab].staged();
    return memory != nullptr && lane_->CanCopyFromBlocks(*memory);
  }
  std::span<std::byte> StageBlock(uint64_t begin, size_t bytes) {
    return lane_->StageBlock(begin, bytes);
  }
  void CopyFromBlock(size_t slab, const BlockCopy& copy) {
    lane_->CopyFromBlock(*slabs_[slab].staged(), copy);
  }

  // Returns when all bytes are in place. Errors: StagingLane::Finish's.
  absl::Status Finish() { return lane_ == nullptr ? absl::OkStatus() : lane_->Finish(); }
  // The status of the staging lane.
  absl::Status status() const { return lane_ == nullptr ? absl::OkStatus() : lane_->status(); }

 private:
  SlabWriter(std::span<const SlabMap> slabs, std::unique_ptr<StagingLane> lane)
      : slabs_(slabs), lane_(std::move(lane)) {}

  std::span<const SlabMap> slabs_;
  std::unique_ptr<StagingLane> lane_;  // null when no slab is staged
};

inline absl::StatusOr<SlabWriter> SlabWriter::Open(std::span<const SlabMap> slabs) {
  for (const SlabMap& slab : slabs) {
    if (slab.staged() == nullptr) continue;
    absl::StatusOr<std::unique_ptr<StagingLane>> lane = slab.staged()->OpenLane();
    if (!lane.ok()) return lane.status();
    return SlabWriter(slabs, *std::move(lane));
  }
  return SlabWriter(slabs, nullptr);
}

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SLAB_WRITER_H_
