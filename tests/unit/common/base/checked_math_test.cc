#include "common/base/checked_math.h"

#include <gtest/gtest.h>

#include <limits>

namespace ckptd {
namespace {

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

TEST(CheckedElements, CountsNothingBesideAnEmptyDimension) {
  EXPECT_EQ(CheckedElements({kHuge, kHuge, 0}), 0u);
}

TEST(CheckedElements, RefusesProductsThatWrap) {
  EXPECT_EQ(CheckedElements({uint64_t{1} << 32, uint64_t{1} << 32}), std::nullopt);
  EXPECT_EQ(CheckedElements({kHuge, 1}), kHuge);
}

TEST(CheckedBytes, RefusesElementsThatEndInsideAByte) {
  EXPECT_EQ(CheckedBytes(3, 4), std::nullopt);
  EXPECT_EQ(CheckedBytes(2, 6), std::nullopt);
  EXPECT_EQ(CheckedBytes(4, 6), 3u);
  EXPECT_EQ(CheckedBytes(10, 4), 5u);
}

TEST(CheckedBytes, RefusesBytesThatWrap) {
  EXPECT_EQ(CheckedBytes(uint64_t{1} << 61, 64), std::nullopt);
  EXPECT_EQ(CheckedBytes(kHuge, 8), kHuge);
  EXPECT_EQ(CheckedBytes(kHuge - 7, 4), kHuge / 2 - 3);
}

}  // namespace
}  // namespace ckptd
