#include "server/transfer/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ckptd {
namespace {

std::vector<std::byte> Pattern(size_t n) {
  std::vector<std::byte> bytes(n);
  uint32_t state = 1;
  for (std::byte& b : bytes) {
    state = state * 1664525u + 1013904223u;
    b = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

// Four pages are copied at the same time. Lengths are near one and two such groups, and below the
// first.
constexpr size_t kGroup = 4 * 4096;

TEST(StreamCopy, CopiesAnyLengthBetweenAnyAlignmentsAndNothingElse) {
  constexpr size_t kRoom = 3 * kGroup;
  const std::vector<std::byte> source = Pattern(kRoom);
  for (const size_t length :
       {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{511}, size_t{512}, size_t{513},
        size_t{640}, size_t{1000}, size_t{4096}, size_t{5001}, kGroup - 1, kGroup, kGroup + 63,
        2 * kGroup - 64, 2 * kGroup + 777}) {
    for (size_t to = 0; to < 64; to += 7) {
      for (const size_t from : {0, 1, 8, 33}) {
        std::vector<std::byte> target(kRoom, std::byte{0xee});
        StreamCopy(target.data() + to, source.data() + from, length);
        StreamFence();
        std::vector<std::byte> expected(kRoom, std::byte{0xee});
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), length,
                    expected.begin() + static_cast<ptrdiff_t>(to));
        ASSERT_EQ(target, expected) << length << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(StreamCopy, CopiesLinesAlikeWithEveryVectorWidthInEveryOrder) {
  using internal::LineOrder;
  constexpr size_t kLines = 2 * kGroup / 64 + 40;
  const std::vector<std::byte> source = Pattern(64 * kLines + 5);
  for (const LineOrder order : {LineOrder::kInOrder, LineOrder::kAcrossPages}) {
    for (const internal::LineKernel kernel :
         {internal::LineKernelSse2(order), internal::LineKernelAvx2(order),
          internal::LineKernelAvx512(order)}) {
      if (kernel == nullptr) continue;
      struct alignas(64) Lines {
        std::byte bytes[64 * kLines];
      };
      Lines target{};
      kernel(target.bytes, source.data() + 5, kLines);
      StreamFence();
      EXPECT_TRUE(std::equal(target.bytes, target.bytes + sizeof target.bytes, source.data() + 5));
    }
  }
}

}  // namespace
}  // namespace ckptd
