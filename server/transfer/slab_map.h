// Finds a slab's bytes by offset, across its segments.
#ifndef CKPTD_SERVER_TRANSFER_SLAB_MAP_H_
#define CKPTD_SERVER_TRANSFER_SLAB_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// Does not own the memory. Immutable, so thread-safe.
class SlabMap {
 public:
  explicit SlabMap(const SlabView& slab) : segments_(slab.segments), staged_(slab.staged.get()) {
    for (const auto& segment : segments_) {
      bytes_ += segment.size();
      ends_.push_back(bytes_);
    }
    if (staged_ != nullptr) bytes_ = staged_->bytes();
  }

  uint64_t bytes() const { return bytes_; }
  // Not null if the slab is staged. Then ForEach has nothing to visit, and bytes go through a
  // lane of this memory.
  StagedMemory* staged() const { return staged_; }

  // Calls visit(std::byte* data, size_t bytes) for each piece of memory of [offset, offset +
  // bytes), in order. The range must lie in the slab.
  template <typename Visit>
  void ForEach(uint64_t offset, uint64_t bytes, const Visit& visit) const {
    auto at =
        static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
    while (bytes > 0) {
      const std::span<std::byte> segment = segments_[at];
      const uint64_t into = offset - (ends_[at] - segment.size());
      const uint64_t n = std::min<uint64_t>(bytes, segment.size() - into);
      visit(segment.data() + into, static_cast<size_t>(n));
      offset += n;
      bytes -= n;
      ++at;
    }
  }

  // Those bytes in one piece. They are in place if one segment has them all. Otherwise they are
  // copied to `scratch`, which must live as long as they are used. Errors: StagedMemory::Read's.
  absl::StatusOr<std::span<const std::byte>> Read(uint64_t offset, size_t bytes,
                                                  std::vector<std::byte>& scratch) const;

 private:
  std::vector<std::span<std::byte>> segments_;
  std::vector<uint64_t> ends_;
  uint64_t bytes_ = 0;
  StagedMemory* staged_ = nullptr;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SLAB_MAP_H_
