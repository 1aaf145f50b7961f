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

TEST(StreamCopy, CopiesAnyLengthBetweenAnyAlignmentsAndNothingElse) {
  const std::vector<std::byte> source = Pattern(8192);
  for (const size_t length : {0, 1, 63, 64, 511, 512, 513, 640, 1000, 4096, 5001}) {
    for (size_t to = 0; to < 64; to += 7) {
      for (const size_t from : {0, 1, 8, 33}) {
        std::vector<std::byte> target(8192, std::byte{0xee});
        StreamCopy(target.data() + to, source.data() + from, length);
        StreamFence();
        std::vector<std::byte> expected(8192, std::byte{0xee});
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), length,
                    expected.begin() + static_cast<ptrdiff_t>(to));
        ASSERT_EQ(target, expected) << length << " bytes from " << from << " to " << to;
      }
    }
  }
}

TEST(StreamCopy, CopiesLinesAlikeWithEveryVectorWidth) {
  const std::vector<std::byte> source = Pattern(64 * 40 + 5);
  for (const internal::LineKernel kernel :
       {internal::LineKernelSse2(), internal::LineKernelAvx2(), internal::LineKernelAvx512()}) {
    if (kernel == nullptr) continue;
    struct alignas(64) Lines {
      std::byte bytes[64 * 40];
    };
    Lines target;
    kernel(target.bytes, source.data() + 5, 40);
    StreamFence();
    EXPECT_TRUE(std::equal(target.bytes, target.bytes + sizeof target.bytes, source.data() + 5));
  }
}

}  // namespace
}  // namespace ckptd
