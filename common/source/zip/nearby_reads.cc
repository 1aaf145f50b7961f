#include "common/source/zip/nearby_reads.h"

#include <fcntl.h>

#include <algorithm>

#include "common/base/status.h"

namespace ckptd::zip {
namespace {

// Reading a gap of this length along costs no more than another call.
constexpr uint64_t kLongGap = 64 << 10;
constexpr uint64_t kWindowBytes = 1 << 20;
// As many reads as storage answers at once.
constexpr size_t kAnnounced = 64;

}  // namespace

NearbyReads::NearbyReads(const ObjectPart& part, std::span<const uint64_t> offsets,
                         size_t usual_bytes)
    : part_(part) {
  for (const uint64_t offset : offsets) {
    if (offset >= part.bytes) break;
    const uint64_t end = offset + std::min<uint64_t>(usual_bytes, part.bytes - offset);
    if (!windows_.empty()) {
      Window& last = windows_.back();
      if (end <= last.end) continue;
      const bool near = offset <= last.end || offset - last.end < kLongGap;
      if (near && end - last.begin <= kWindowBytes) {
        last.end = end;
        continue;
      }
    }
    windows_.push_back({offset, end});
  }
}

void NearbyReads::AnnounceNext() {
  const int fd = part_.object->fd();
  if (fd < 0) return;
  const size_t end = std::min(windows_.size(), next_ + kAnnounced);
  for (announced_ = std::max(announced_, next_); announced_ < end; ++announced_) {
    const Window& window = windows_[announced_];
    // A hint: it may fail.
    ::posix_fadvise(fd, static_cast<off_t>(part_.begin + window.begin),
                    static_cast<off_t>(window.end - window.begin), POSIX_FADV_WILLNEED);
  }
}

absl::StatusOr<std::span<const std::byte>> NearbyReads::Get(uint64_t offset, size_t bytes) {
  const auto have = [&] {
    return offset >= begin_ && offset - begin_ <= bytes_.size() &&
           bytes <= bytes_.size() - (offset - begin_);
  };
  if (!have()) {
    while (next_ < windows_.size() && windows_[next_].end <= offset) ++next_;
    uint64_t end = offset + std::min<uint64_t>(bytes, UINT64_MAX - offset);
    if (next_ < windows_.size() && windows_[next_].begin <= offset) {
      end = std::max(end, windows_[next_++].end);
      AnnounceNext();
    }
    bytes_.resize(static_cast<size_t>(end - offset));
    begin_ = offset;
    if (const absl::Status read = part_.ReadAt(offset, bytes_); !read.ok()) {
      bytes_.clear();
      return read;
    }
  }
  return std::span<const std::byte>(bytes_).subspan(static_cast<size_t>(offset - begin_), bytes);
}

}  // namespace ckptd::zip
