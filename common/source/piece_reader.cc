#include "common/source/piece_reader.h"

#include <algorithm>

#include "common/base/status.h"

namespace ckptd {
namespace {

// Reading a gap of this length along costs no more than another call.
constexpr uint64_t kLongGap = 64 << 10;
constexpr uint64_t kWindowBytes = 1 << 20;

}  // namespace

absl::StatusOr<size_t> PieceReader::Read(std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size() && !runs_.done()) {
    const auto n =
        static_cast<size_t>(std::min<uint64_t>(out.size() - done, runs_.bytes() - used_));
    CKPTD_RETURN_IF_ERROR(ReadPart(out.subspan(done, n)));
    done += n;
    used_ += n;
    if (used_ < runs_.bytes()) continue;
    used_ = 0;
    runs_.Next();
  }
  return done;
}

// From the run that is open.
absl::Status PieceReader::ReadPart(std::span<std::byte> out) {
  const uint64_t at = runs_.offset() + used_;
  if (runs_.gap() == 0 || runs_.gap() >= kLongGap || out.size() >= kWindowBytes) {
    return object_.ReadAt(at, out);
  }
  const bool there =
      at >= window_begin_ && at + out.size() <= window_begin_ + window_.size();
  if (!there) {
    window_.resize(static_cast<size_t>(std::min(end_ - at, kWindowBytes)));
    window_begin_ = at;
    CKPTD_RETURN_IF_ERROR(object_.ReadAt(at, window_));
  }
  std::copy_n(window_.begin() + static_cast<std::ptrdiff_t>(at - window_begin_), out.size(),
              out.begin());
  return absl::OkStatus();
}

}  // namespace ckptd
