#include "server/transfer/frame_sender.h"

#include <algorithm>
#include <cstring>

#include "common/base/digest.h"
#include "common/base/status.h"

namespace ckptd {

FrameSender::FrameSender(std::span<const RemoteTarget> remotes) : remotes_(remotes) {
  // Gaps are not sent: unneeded bytes cost more on a network than in memory.
  for (const RemoteTarget& remote : remotes) {
    copies_.emplace_back(remote.schedule, remote.self, 0);
  }
}

absl::Status FrameSender::Begin(uint32_t file, uint64_t begin, uint64_t end) {
  file_ = file;
  begin_ = begin;
  end_ = end;
  parcel_count_ = 0;
  for (size_t i = 0; i < remotes_.size(); ++i) {
    CKPTD_RETURN_IF_ERROR(copies_[i].Begin(ItemIn(remotes_[i].schedule, file, begin, end)));
    if (copies_[i].needed_bytes() == 0) continue;
    Parcel& parcel = ParcelFor(copies_[i].ranges());
    parcel.left = copies_[i].needed_bytes();
    parcel.remotes.push_back(i);
  }
  return absl::OkStatus();
}

FrameSender::Parcel& FrameSender::ParcelFor(std::span<const SourceRange> ranges) {
  for (size_t i = 0; i < parcel_count_; ++i) {
    Parcel& known = parcels_[i];
    if (std::equal(known.ranges.begin(), known.ranges.end(), ranges.begin(), ranges.end())) {
      return known;
    }
  }
  if (parcel_count_ == parcels_.size()) parcels_.emplace_back();
  Parcel& parcel = parcels_[parcel_count_++];
  parcel.ranges.assign(ranges.begin(), ranges.end());
  parcel.remotes.clear();
  parcel.next_range = 0;
  parcel.begin = begin_;
  parcel.data.reset();
  parcel.filled = 0;
  return parcel;
}

absl::Status FrameSender::MakeRoom(uint64_t offset, uint64_t bytes) {
  for (Parcel& parcel : std::span(parcels_).first(parcel_count_)) {
    if (parcel.filled + std::min(bytes, parcel.left - parcel.filled) > kMaxFrameBytes) {
      CKPTD_RETURN_IF_ERROR(Flush(parcel, offset));
    }
    if (parcel.data == nullptr && parcel.left > 0) {
      parcel.data = std::make_shared_for_overwrite<std::byte[]>(
          static_cast<size_t>(std::min<uint64_t>(kMaxFrameBytes, parcel.left)));
    }
  }
  return absl::OkStatus();
}

void FrameSender::Add(uint64_t offset, std::span<const std::byte> data) {
  const uint64_t end = offset + data.size();
  for (Parcel& parcel : std::span(parcels_).first(parcel_count_)) {
    for (; parcel.next_range < parcel.ranges.size(); ++parcel.next_range) {
      const SourceRange& range = parcel.ranges[parcel.next_range];
      const uint64_t from = std::max(range.begin, offset);
      const uint64_t to = std::min(range.end, end);
      if (from < to) {
        std::memcpy(parcel.data.get() + parcel.filled, data.data() + (from - offset),
                    static_cast<size_t>(to - from));
        parcel.filled += static_cast<size_t>(to - from);
      }
      if (range.end > end) break;  // the range continues in the next block
    }
  }
}

absl::Status FrameSender::Flush(Parcel& parcel, uint64_t end) {
  if (parcel.filled == 0) return absl::OkStatus();
  Frame frame;
  frame.header = {file_, parcel.begin, end, Xxh3({parcel.data.get(), parcel.filled})};
  frame.data = std::move(parcel.data);
  frame.bytes = parcel.filled;
  parcel.left -= parcel.filled;
  parcel.filled = 0;
  parcel.begin = end;
  for (const size_t remote : parcel.remotes) {
    CKPTD_RETURN_IF_ERROR(remotes_[remote].self.front().sink->Send(frame));
  }
  return absl::OkStatus();
}

absl::Status FrameSender::Finish(std::span<uint64_t> done) {
  for (Parcel& parcel : std::span(parcels_).first(parcel_count_)) {
    CKPTD_RETURN_IF_ERROR(Flush(parcel, end_));
    for (const size_t remote : parcel.remotes) {
      done[remotes_[remote].target] += copies_[remote].local_bytes();
    }
  }
  return absl::OkStatus();
}

}  // namespace ckptd
