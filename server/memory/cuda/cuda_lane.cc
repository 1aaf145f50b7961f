#include "server/memory/cuda/cuda_lane.h"

#include <algorithm>
#include <atomic>
#include <chrono>
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

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::span<std::byte> CudaLane::Fail(absl::Status status) {
  stands_still_ = stands_still_ || absl::IsDeadlineExceeded(status);
  if (error_.ok()) error_ = std::move(status);
  if (nowhere_ == nullptr) nowhere_ = std::make_unique<std::byte[]>(kNowhereBytes);
  return {nowhere_.get(), kNowhereBytes};
}

std::span<std::byte> CudaLane::Stage(std::span<const StagedPlace> places, uint64_t into,
                                     uint64_t bytes) {
  Extent* extent = error_.ok() ? Open(places, into, bytes) : nullptr;
  if (extent == nullptr) {
    const auto nowhere = Fail(absl::OkStatus());
    return nowhere.first(static_cast<size_t>(std::min<uint64_t>(bytes, nowhere.size())));
  }
  const size_t n = static_cast<size_t>(std::min<uint64_t>(bytes, extent->room - extent->used));
  const auto out = slot_->bytes().subspan(extent->at + extent->used, n);
  extent->used += n;
  return out;
}

bool CudaLane::GoesOn(const Extent& extent, std::span<const StagedPlace> places,
                      uint64_t into) const {
  const auto known = std::span(places_).subspan(extent.first, extent.places);
  return std::equal(known.begin(), known.end(), places.begin(), places.end(),
                    [&](const StagedPlace& one, const StagedPlace& other) {
                      return one.memory == other.memory &&
                             one.offset + extent.used == other.offset + into;
                    });
}

// The extent of these places that goes on at `into`, with room left; null after an error.
CudaLane::Extent* CudaLane::Open(std::span<const StagedPlace> places, uint64_t into,
                                 uint64_t bytes) {
  const auto open = open_.find(places.front().memory);
  if (open == open_.end()) return OpenNew(places, into, bytes);
  Extent& extent = extents_[open->second];
  const bool last = extent.at + extent.room == taken_;
  if (GoesOn(extent, places, into)) {
    if (extent.used < extent.room) return &extent;
    if (last && taken_ < Capacity()) {
      const size_t more = RoomFor(bytes);
      extent.room += more;
      taken_ += more;
      return &extent;
    }
  } else if (last) {
    const size_t unused = extent.room - extent.used;
    taken_ -= unused / kAlignment * kAlignment;
    extent.room = extent.used;
  }
  return OpenNew(places, into, bytes);
}

// `taken_` and this stay multiples of kAlignment.
size_t CudaLane::Capacity() const {
  return slot_->bytes().size() - (has_blocks_ ? SlotTasks::kTableRoom : 0);
}

// Bytes of the slot for an extent that will take `bytes` next, and maybe more.
size_t CudaLane::RoomFor(uint64_t bytes) const {
  const size_t left = Capacity() - taken_;
  return bytes >= left ? left : std::min(Aligned(std::max(bytes, kLeastExtent)), left);
}

bool CudaLane::HasRoom(size_t bytes) {
  if (slot_ != nullptr && Capacity() - taken_ < bytes) {
    if (absl::Status status = Submit(); !status.ok()) {
      Fail(std::move(status));
      return false;
    }
  }
  if (slot_ != nullptr) return true;
  absl::StatusOr<StagingPool::Slot*> slot = pool_->Take(this);
  if (!slot.ok()) {
    Fail(slot.status());
    return false;
  }
  slot_ = *slot;
  taken_ = 0;
  return true;
}

CudaLane::Extent* CudaLane::OpenNew(std::span<const StagedPlace> places, uint64_t into,
                                    uint64_t bytes) {
  const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes, kLeastExtent));
  if (!HasRoom(wanted)) return nullptr;
  Extent extent;
  extent.first = places_.size();
  extent.places = places.size();
  for (const StagedPlace& place : places) places_.push_back({place.memory, place.offset + into});
  extent.at = taken_;
  extent.room = RoomFor(bytes);
  taken_ += extent.room;
  open_[places.front().memory] = extents_.size();
  return &extents_.emplace_back(extent);
}

bool CudaLane::TakesBlocks(const StagedMemory& memory) const {
  return static_cast<const CudaBytes&>(memory).kernels() != nullptr;
}

std::span<std::byte> CudaLane::StageBlock(uint64_t begin, size_t bytes) {
  // Kernels are fastest where addresses and positions agree in their last bits.
  const size_t askew = begin % kAlignment;
  const size_t room = Aligned(askew + bytes);
  const size_t for_tables = has_blocks_ ? 0 : SlotTasks::kTableRoom;
  if (!error_.ok() || !HasRoom(room + for_tables)) return {};
  has_blocks_ = true;
  const auto out = slot_->bytes().subspan(taken_ + askew, bytes);
  taken_ += room;
  block_ = {reinterpret_cast<uint64_t>(out.data()), begin, bytes};
  return out;
}

void CudaLane::Take(StagedMemory& memory, const BlockCopy& copy) {
  if (!error_.ok()) return;
  absl::Status status = tasks_.Add(static_cast<const CudaBytes&>(memory), block_, copy);
  if (!status.ok()) Fail(std::move(status));
}

absl::StatusOr<CUstream> CudaLane::StreamOf(const std::shared_ptr<CudaDevice>& device) {
  const auto known = streams_.find(device);
  if (known != streams_.end()) return known->second.get();
  CKPTD_ASSIGN_OR_RETURN(CudaStream stream, CudaStream::Make(device));
  return streams_.emplace(device, std::move(stream)).first->second.get();
}

absl::Status CudaLane::Copy(const Extent& extent, const StagedPlace& to) {
  // All staged memory of a process is of this backend.
  const auto& memory = static_cast<const CudaBytes&>(*to.memory);
  const auto& device = memory.device();
  CKPTD_ASSIGN_OR_RETURN(const CUstream stream, StreamOf(device));
  const CudaScope scope(*device);
  return device->Check(
      device->driver().MemcpyHtoDAsync(memory.address() + to.offset,
                                       slot_->bytes().data() + extent.at, extent.used, stream),
      "copying");
}

// Starts the copies of the slot and lets go of it.
absl::Status CudaLane::Submit() {
  // What was written past the caches must be in memory before an engine reads it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  absl::Status status;
  for (const Extent& extent : extents_) {
    for (size_t i = 0; i < extent.places && extent.used > 0 && status.ok(); ++i) {
      status = Copy(extent, places_[extent.first + i]);
    }
  }
  if (status.ok()) {
    status = tasks_.Launch(slot_->bytes().subspan(taken_),
                           [this](const auto& device) { return StreamOf(device); });
  }
  // After an error, too: what was started still reads the slot.
  for (const auto& [device, stream] : streams_) {
    const absl::Status recorded = pool_->Record(*slot_, device, stream.get());
    if (status.ok()) status = recorded;
  }
  pool_->Give(std::exchange(slot_, nullptr));
  extents_.clear();
  places_.clear();
  open_.clear();
  tasks_.Clear();
  has_blocks_ = false;
  return status;
}

absl::Status CudaLane::Finish() {
  if (slot_ != nullptr) {
    if (absl::Status status = Submit(); !status.ok()) Fail(std::move(status));
  }
  // One patience for all: what is queued is no more than there are slots.
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + StagingPool::kPatience;
  for (const auto& [device, stream] : streams_) {
    absl::Status status =
        stream.Wait(std::max<std::chrono::nanoseconds>(deadline - Clock::now(), {}));
    if (absl::IsDeadlineExceeded(status)) status = DeviceStandsStill(*device, StagingPool::kPatience);
    if (!status.ok()) Fail(std::move(status));
  }
  return error_;
}

}  // namespace ckptd
