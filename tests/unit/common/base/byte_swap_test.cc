#include "common/base/byte_swap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace ckptd {
namespace {

std::vector<std::byte> Counted(size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 256);
  return out;
}

std::vector<std::byte> Swapped(std::vector<std::byte> bytes, size_t width) {
  for (size_t i = 0; i < bytes.size(); i += width) {
    const auto begin = bytes.begin() + static_cast<ptrdiff_t>(i);
    std::reverse(begin, begin + static_cast<ptrdiff_t>(width));
  }
  return bytes;
}

// Each length that fills vectors, and each that leaves a rest, from unaligned places.
void ExpectSwaps(internal::SwapKernel swap, size_t width) {
  constexpr size_t kOdd = 3;
  for (size_t bytes = 0; bytes <= 200; bytes += width) {
    const std::vector<std::byte> numbers = Counted(bytes);
    std::vector<std::byte> src(kOdd);
    src.insert(src.end(), numbers.begin(), numbers.end());
    std::vector<std::byte> dst(bytes + 2 * kOdd, std::byte{0x55});
    swap(width, src.data() + kOdd, dst.data() + kOdd, bytes);
    std::vector<std::byte> expected(kOdd, std::byte{0x55});
    const std::vector<std::byte> swapped = Swapped(numbers, width);
    expected.insert(expected.end(), swapped.begin(), swapped.end());
    expected.resize(dst.size(), std::byte{0x55});
    EXPECT_EQ(dst, expected) << width << " bytes, " << bytes / width << " of them";
  }
}

class SwapBytesTest : public testing::TestWithParam<size_t> {};

TEST_P(SwapBytesTest, TurnsEachNumberRound) { ExpectSwaps(SwapBytes, GetParam()); }

TEST_P(SwapBytesTest, IsTheSameWithoutVectors) {
  ExpectSwaps(internal::SwapKernelPlain(), GetParam());
}

TEST_P(SwapBytesTest, IsTheSameWithWideVectors) {
  if (internal::SwapKernelAvx2() == nullptr) GTEST_SKIP() << "this processor has no AVX2";
  ExpectSwaps(internal::SwapKernelAvx2(), GetParam());
}

TEST_P(SwapBytesTest, TurnsNumbersRoundWhereTheyAre) {
  const std::vector<std::byte> numbers = Counted(72);
  std::vector<std::byte> place = numbers;
  SwapBytes(GetParam(), place.data(), place.data(), place.size());
  EXPECT_EQ(place, Swapped(numbers, GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Widths, SwapBytesTest, testing::Values(2, 4, 8));

TEST(SwapBytes, OfSingleBytesIsACopy) {
  const std::vector<std::byte> bytes = Counted(33);
  std::vector<std::byte> out(33);
  SwapBytes(1, bytes.data(), out.data(), bytes.size());
  EXPECT_EQ(out, bytes);
}

TEST(NegateNumbers, TurnsTheHighestBitsOver) {
  for (const size_t width : {2u, 4u, 8u}) {
    for (const Signs which : {Signs::kNone, Signs::kFirst, Signs::kSecond, Signs::kBoth}) {
      std::vector<std::byte> numbers = Counted(4 * width);
      std::vector<std::byte> want = numbers;
      for (size_t n = 0; n < 4; ++n) {
        const int bit = n % 2 == 0 ? 1 : 2;
        const bool turned = (static_cast<int>(which) & bit) != 0;
        if (turned) want[n * width + width - 1] ^= std::byte{0x80};
      }
      NegateNumbers(width, which, numbers.data(), numbers.size());
      EXPECT_EQ(numbers, want);
    }
  }
}

}  // namespace
}  // namespace ckptd
