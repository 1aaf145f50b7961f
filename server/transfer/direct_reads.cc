#include "server/transfer/direct_reads.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

namespace ckptd {
namespace {

// Alignment of offsets, lengths and memory. Every block device and file system accepts it.
constexpr uint64_t kAlignment = 4096;
constexpr uint64_t kHugePage = 2 << 20;

uint64_t RoundUp(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

}  // namespace

DirectReads::DirectReads(size_t slots, uint64_t most)
    : most_(most), slot_bytes_(RoundUp(most, kAlignment) + 2 * kAlignment), slots_(slots) {}

std::unique_ptr<DirectReads> DirectReads::Create(size_t slots, uint64_t most) {
  std::unique_ptr<DirectReads> reads(new DirectReads(slots, most));
  const uint64_t bytes = RoundUp(slots * reads->slot_bytes_, kHugePage);
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  reads->memory_ = Mapping(address, bytes);
  ::madvise(address, bytes, MADV_HUGEPAGE);  // fewer pages to pin; a refusal does not matter
  if (::io_uring_queue_init(static_cast<unsigned>(slots), &reads->ring_, 0) != 0) {
    reads->slots_.clear();  // leaves the destructor nothing to wait for or close
    return nullptr;
  }
  for (size_t i = 0; i < slots; ++i) {
    reads->slots_[i].memory = reads->memory_.data() + i * reads->slot_bytes_;
  }
  return reads;
}

DirectReads::~DirectReads() {
  if (slots_.empty()) return;
  for (size_t i = 0; i < slots_.size(); ++i) Release(i);
  ::io_uring_queue_exit(&ring_);
}

std::optional<size_t> DirectReads::Start(int fd, uint64_t begin, uint64_t end) {
  const auto free = std::find_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.taken; });
  if (broken_ || free == slots_.end() || end - begin > most_) return std::nullopt;
  const auto number = static_cast<size_t>(free - slots_.begin());
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  if (entry == nullptr) return std::nullopt;
  const uint64_t from = begin / kAlignment * kAlignment;
  free->skipped = begin - from;
  free->wanted = end - begin;
  const auto bytes = static_cast<unsigned>(RoundUp(end, kAlignment) - from);
  ::io_uring_prep_read(entry, fd, free->memory, bytes, from);
  ::io_uring_sqe_set_data64(entry, number);
  free->taken = free->in_flight = true;
  int submitted = 0;
  do {
    submitted = ::io_uring_submit(&ring_);
  } while (submitted == -EINTR);
  if (submitted == 1) return number;
  // The entry stays in the ring, so nothing may be submitted any more. The kernel would read into
  // memory that has another use by then.
  broken_ = true;
  free->taken = free->in_flight = false;
  return std::nullopt;
}

std::span<const std::byte> DirectReads::Wait(size_t number) {
  Slot& slot = slots_[number];
  while (slot.in_flight) {
    io_uring_cqe* done = nullptr;
    const int status = ::io_uring_wait_cqe(&ring_, &done);
    if (status == -EINTR) continue;
    if (status != 0) return {};
    Slot& ready = slots_[::io_uring_cqe_get_data64(done)];
    ready.result = done->res;
    ready.in_flight = false;
    ::io_uring_cqe_seen(&ring_, done);
  }
  if (slot.result < 0 || static_cast<uint64_t>(slot.result) < slot.skipped + slot.wanted) return {};
  return {slot.memory + slot.skipped, slot.wanted};
}

void DirectReads::Release(size_t number) {
  if (slots_[number].in_flight) Wait(number);
  // While the kernel may still write to the slot, nobody may have it.
  slots_[number].taken = slots_[number].in_flight;
}

}  // namespace ckptd
