#include "server/memory/cuda/cuda_lane.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "common/base/status.h"
#include "server/memory/cuda/cuda_bytes.h"

namespace ckptd {
namespace {

// If runs go to several ranks in turn, each rank's extent grows by this much at a time, so that
// its runs become one copy.
constexpr size_t kMinExtentBytes = 64 << 10;
constexpr size_t kDiscardedBytes = 64 << 10;
// Extents start at whole cache lines of their slot.
constexpr size_t kAlignment = 64;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::span<std::byte> CudaLane::Fail(absl::Status status) {
  timed_out_ = timed_out_ || absl::IsDeadlineExceeded(status);
  if (error_.ok()) error_ = std::move(status);
  if (discarded_ == nullptr) discarded_ = std::make_unique<std::byte[]>(kDiscardedBytes);
  return {discarded_.get(), kDiscardedBytes};
}

std::span<std::byte> CudaLane::Stage(std::span<const StagedPlace> places, uint64_t into,
                                     uint64_t bytes) {
  Extent* extent = error_.ok() ? Open(places, into, bytes) : nullptr;
  if (extent == nullptr) {
    const auto discarded = Fail(absl::OkStatus());
    return discarded.first(static_cast<size_t>(std::min<uint64_t>(bytes, discarded.size())));
  }
  const size_t n = static_cast<size_t>(std::min<uint64_t>(bytes, extent->room - extent->used));
  const auto out = slot_->bytes().subspan(extent->at + extent->used, n);
  extent->used += n;
  return out;
}

bool CudaLane::Continues(const Extent& extent, std::span<const StagedPlace> places,
                         uint64_t into) const {
  const auto known = std::span(places_).subspan(extent.first, extent.places);
  return std::equal(known.begin(), known.end(), places.begin(), places.end(),
                    [&](const StagedPlace& one, const StagedPlace& other) {
                      return one.memory == other.memory &&
                             one.offset + extent.used == other.offset + into;
                    });
}

// The extent of these places that continues at `into` and has room. Null after an error.
CudaLane::Extent* CudaLane::Open(std::span<const StagedPlace> places, uint64_t into,
                                 uint64_t bytes) {
  const auto open = open_extents_.find(places.front().memory);
  if (open == open_extents_.end()) return OpenNew(places, into, bytes);
  Extent& extent = extents_[open->second];
  const bool last = extent.at + extent.room == used_bytes_;
  if (Continues(extent, places, into)) {
    if (extent.used < extent.room) return &extent;
    if (last && used_bytes_ < Capacity()) {
      const size_t more = RoomFor(bytes);
      extent.room += more;
      used_bytes_ += more;
      return &extent;
    }
  } else if (last) {
    const size_t unused = extent.room - extent.used;
    used_bytes_ -= unused / kAlignment * kAlignment;
    extent.room = extent.used;
  }
  return OpenNew(places, into, bytes);
}

// `used_bytes_` and this stay multiples of kAlignment.
size_t CudaLane::Capacity() const {
  return slot_->bytes().size() - (has_blocks_ ? SlotTasks::kTableRoom : 0);
}

// Bytes of the slot to reserve for an extent that will take `bytes` next, and maybe more.
size_t CudaLane::RoomFor(uint64_t bytes) const {
  const size_t left = Capacity() - used_bytes_;
  return bytes >= left ? left : std::min(Aligned(std::max(bytes, kMinExtentBytes)), left);
}

bool CudaLane::HasRoom(size_t bytes) {
  if (slot_ != nullptr && Capacity() - used_bytes_ < bytes) {
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
  used_bytes_ = 0;
  return true;
}

CudaLane::Extent* CudaLane::OpenNew(std::span<const StagedPlace> places, uint64_t into,
                                    uint64_t bytes) {
  const auto wanted = static_cast<size_t>(std::min<uint64_t>(bytes, kMinExtentBytes));
  if (!HasRoom(wanted)) return nullptr;
  Extent extent;
  extent.first = places_.size();
  extent.places = places.size();
  for (const StagedPlace& place : places) places_.push_back({place.memory, place.offset + into});
  extent.at = used_bytes_;
  extent.room = RoomFor(bytes);
  used_bytes_ += extent.room;
  open_extents_[places.front().memory] = extents_.size();
  return &extents_.emplace_back(extent);
}

bool CudaLane::CanCopyFromBlocks(const StagedMemory& memory) const {
  return static_cast<const CudaBytes&>(memory).kernels() != nullptr;
}

std::span<std::byte> CudaLane::StageBlock(uint64_t begin, size_t bytes) {
  // Kernels are fastest if addresses and source positions are equal modulo the alignment.
  const size_t skew = begin % kAlignment;
  const size_t room = Aligned(skew + bytes);
  const size_t for_tables = has_blocks_ ? 0 : SlotTasks::kTableRoom;
  if (!error_.ok() || !HasRoom(room + for_tables)) return {};
  has_blocks_ = true;
  const auto out = slot_->bytes().subspan(used_bytes_ + skew, bytes);
  used_bytes_ += room;
  block_ = {reinterpret_cast<uint64_t>(out.data()), begin, bytes};
  return out;
}

void CudaLane::CopyFromBlock(StagedMemory& memory, const BlockCopy& copy) {
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
  // All staged memory of a process belongs to this backend.
  const auto& memory = static_cast<const CudaBytes&>(*to.memory);
  const auto& device = memory.device();
  CKPTD_ASSIGN_OR_RETURN(const CUstream stream, StreamOf(device));
  const CudaScope scope(*device);
  return device->Check(
      device->driver().MemcpyHtoDAsync(memory.address() + to.offset,
                                       slot_->bytes().data() + extent.at, extent.used, stream),
      "copying");
}

// Starts the slot's copies, and returns the slot to the pool.
absl::Status CudaLane::Submit() {
  // Non-temporal stores must be in memory before a copy engine reads it.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  absl::Status status;
  for (const Extent& extent : extents_) {
    for (size_t i = 0; i < extent.places && extent.used > 0 && status.ok(); ++i) {
      status = Copy(extent, places_[extent.first + i]);
    }
  }
  if (status.ok()) {
    status = tasks_.Launch(slot_->bytes().subspan(used_bytes_),
                           [this](const auto& device) { return StreamOf(device); });
  }
  // This is done after an error, too: the copies that were started still read the slot.
  for (const auto& [device, stream] : streams_) {
    const absl::Status recorded = pool_->Record(*slot_, device, stream.get());
    if (status.ok()) status = recorded;
  }
  pool_->Give(std::exchange(slot_, nullptr));
  extents_.clear();
  places_.clear();
  open_extents_.clear();
  tasks_.Clear();
  has_blocks_ = false;
  return status;
}

absl::Status CudaLane::Finish() {
  if (slot_ != nullptr) {
    if (absl::Status status = Submit(); !status.ok()) Fail(std::move(status));
  }
  // One deadline for all streams: together they have at most as many copies as there are slots.
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + StagingPool::kPatience;
  for (const auto& [device, stream] : streams_) {
    absl::Status status =
        stream.Wait(std::max<std::chrono::nanoseconds>(deadline - Clock::now(), {}));
    if (absl::IsDeadlineExceeded(status)) status = DeviceStalled(*device, StagingPool::kPatience);
    if (!status.ok()) Fail(std::move(status));
  }
  return error_;
}

}  // namespace ckptd
