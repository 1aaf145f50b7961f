#include "server/memory/cuda/cuda_lane.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/base/status.h"
#include "server/memory/cuda/cuda_bytes.h"

namespace ckptd {
namespace {

// Runs that are dealt out to several ranks in turn grow in stretches of this, so that
// each becomes one copy.
constexpr size_t kLeastExtent = 64 << 10;
constexpr size_t kNowhereBytes = 64 << 10;
// Of where an extent starts in its slot: whole cache lines.
constexpr size_t kAlignment = 64;

}  // namespace

std::span<std::byte> CudaLane::Fail(absl::Status status) {
  if (error_.ok()) error_ = std::move(status);
  if (nowhere_ == nullptr) nowhere_ = std::make_unique<std::byte[]>(kNowhereBytes);
  return {nowhere_.get(), kNowhereBytes};
}

std::span<std::byte> CudaLane::Stage(StagedMemory& memory, uint64_t offset, uint64_t bytes) {
  // All staged memory of a process is of this backend.
  auto& target = static_cast<CudaBytes&>(memory);
  Extent* extent = error_.ok() ? Open(target, offset, bytes) : nullptr;
  if (extent == nullptr) {
    const auto nowhere = Fail(absl::OkStatus());
    return nowhere.first(static_cast<size_t>(std::min<uint64_t>(bytes, nowhere.size())));
  }
  const size_t n = static_cast<size_t>(std::min<uint64_t>(bytes, extent->room - extent->used));
  const auto out = slot_->bytes().subspan(extent->at + extent->used, n);
  extent->used += n;
  return out;
}

// The extent of `memory` that goes on at `offset`, with room left; null after an error.
CudaLane::Extent* CudaLane::Open(CudaBytes& memory, uint64_t offset, uint64_t bytes) {
  const auto open = open_.find(&memory);
  if (open == open_.end()) return OpenNew(memory, offset, bytes);
  Extent& extent = extents_[open->second];
  const bool last = extent.at + extent.room == taken_;
  if (extent.offset + extent.used == offset) {
    if (extent.used < extent.room) return &extent;
    if (last && taken_ < slot_->bytes().size()) {
      const uint64_t more = std::min<uint64_t>(std::max<uint64_t>(bytes, kLeastExtent),
                                               slot_->bytes().size() - taken_);
      extent.room += static_cast<size_t>(more);
      taken_ += static_cast<size_t>(more);
      return &extent;
    }
  } else if (last) {
    const size_t unused = extent.room - extent.used;
    taken_ -= unused / kAlignment * kAlignment;
    extent.room = extent.used;
  }
  return OpenNew(memory, offset, bytes);
}

CudaLane::Extent* CudaLane::OpenNew(CudaBytes& memory, uint64_t offset, uint64_t bytes) {
  const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes, kLeastExtent));
  if (slot_ != nullptr && slot_->bytes().size() - taken_ < wanted) {
    if (absl::Status status = Submit(); !status.ok()) {
      Fail(std::move(status));
      return nullptr;
    }
  }
  if (slot_ == nullptr) {
    absl::StatusOr<StagingPool::Slot*> slot = pool_->Take();
    if (!slot.ok()) {
      Fail(slot.status());
      return nullptr;
    }
    slot_ = *slot;
    taken_ = 0;
  }
  Extent extent;
  extent.memory = &memory;
  extent.offset = offset;
  extent.at = taken_;
  extent.room = static_cast<size_t>(std::min<uint64_t>(std::max<uint64_t>(bytes, kLeastExtent),
                                                       slot_->bytes().size() - taken_));
  taken_ = std::min((taken_ + extent.room + kAlignment - 1) / kAlignment * kAlignment,
                    slot_->bytes().size());
  extent.room = taken_ - extent.at;
  open_[&memory] = extents_.size();
  return &extents_.emplace_back(extent);
}

absl::StatusOr<CUstream> CudaLane::StreamOf(const std::shared_ptr<CudaDevice>& device) {
  const auto known = streams_.find(device);
  if (known != streams_.end()) return known->second.get();
  CKPTD_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Make(device));
  return streams_.emplace(device, std::move(stream)).first->second.get();
}

absl::Status CudaLane::Copy(const Extent& extent) {
  const auto& device = extent.memory->device();
  CKPTD_ASSIGN_OR_RETURN(const CUstream stream, StreamOf(device));
  const CudaScope scope(*device);
  return device->Check(
      device->driver().MemcpyHtoDAsync(extent.memory->address() + extent.offset,
                                       slot_->bytes().data() + extent.at, extent.used, stream),
      "copying");
}

// Starts the copies of the slot and lets go of it.
absl::Status CudaLane::Submit() {
  // What was written past the caches must be in memory before an engine reads it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  absl::Status status;
  for (const Extent& extent : extents_) {
    if (status.ok() && extent.used > 0) status = Copy(extent);
  }
  // After an error, too: what was started still reads the slot.
  for (const auto& [device, stream] : streams_) {
    const absl::Status recorded = pool_->Record(*slot_, device, stream.get());
    if (status.ok()) status = recorded;
  }
  pool_->Give(std::exchange(slot_, nullptr));
  extents_.clear();
  open_.clear();
  return status;
}

absl::Status CudaLane::Finish() {
  if (slot_ != nullptr) {
    if (absl::Status status = Submit(); !status.ok()) Fail(std::move(status));
  }
  for (const auto& [device, stream] : streams_) {
    absl::Status status = stream.Wait(StagingPool::kPatience);
    if (!status.ok()) Fail(std::move(status));
  }
  return error_;
}

}  // namespace ckptd
