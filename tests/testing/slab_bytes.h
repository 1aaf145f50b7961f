// The bytes of a slab, whatever memory it lies in.
#ifndef CKPTD_TESTS_TESTING_SLAB_BYTES_H_
#define CKPTD_TESTS_TESTING_SLAB_BYTES_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "server/memory/slab_view.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {

inline uint64_t BytesOf(const SlabView& slab) {
  uint64_t bytes = slab.staged == nullptr ? 0 : slab.staged->bytes();
  for (const auto& segment : slab.segments) bytes += segment.size();
  return bytes;
}

// Calls visit(std::byte*, size_t) for each piece of memory that takes the range.
template <typename Visit>
void ForEachPiece(const SlabView& slab, uint64_t offset, uint64_t bytes, const Visit& visit) {
  uint64_t begin = 0;
  for (const auto& segment : slab.segments) {
    const uint64_t from = std::max(offset, begin);
    const uint64_t to = std::min(offset + bytes, begin + segment.size());
    if (from < to) visit(segment.data() + (from - begin), static_cast<size_t>(to - from));
    begin += segment.size();
  }
}

inline void WriteBytes(const SlabView& slab, uint64_t offset, std::span<const std::byte> bytes) {
  const std::byte* from = bytes.data();
  const auto take = [&from](std::byte* to, size_t n) {
    std::memcpy(to, from, n);
    from += n;
  };
  if (slab.staged == nullptr) return ForEachPiece(slab, offset, bytes.size(), take);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<StagingLane> lane, slab.staged->OpenLane());
  for (uint64_t done = 0; done < bytes.size();) {
    const StagedPlace place = {slab.staged.get(), offset};
    const auto room = lane->Stage({&place, 1}, done, bytes.size() - done);
    take(room.data(), room.size());
    done += room.size();
  }
  ASSERT_OK(lane->Finish());
}

inline std::vector<std::byte> ReadBytes(const SlabView& slab, uint64_t offset, uint64_t bytes) {
  std::vector<std::byte> out(bytes);
  if (slab.staged != nullptr) {
    EXPECT_OK(slab.staged->Read(offset, out));
    return out;
  }
  std::byte* to = out.data();
  ForEachPiece(slab, offset, bytes, [&to](const std::byte* from, size_t n) {
    std::memcpy(to, from, n);
    to += n;
  });
  return out;
}
inline std::vector<std::byte> ReadBytes(const SlabView& slab) {
  return ReadBytes(slab, 0, BytesOf(slab));
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_SLAB_BYTES_H_
