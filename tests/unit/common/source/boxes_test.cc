#include "common/source/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

namespace ckptd {
namespace {

// The row-major numbers of all elements of the boxes, box after box.
std::vector<uint64_t> ElementsOf(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<uint64_t> elements;
  for (const Box& box : boxes) {
    for (uint64_t i = 0; i < ElementCount(box.extents); ++i) {
      uint64_t rest = i;
      uint64_t number = 0;
      uint64_t step = 1;
      for (size_t dim = shape.size(); dim-- > 0;) {
        number += (box.offsets[dim] + rest % box.extents[dim]) * step;
        rest /= box.extents[dim];
        step *= shape[dim];
      }
      elements.push_back(number);
    }
  }
  return elements;
}

TEST(BoxesOfRange, HoldEachElementOnceInOrder) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{1, 5, 1}, Shape{3, 4}, Shape{2, 3, 2, 3}}) {
    const uint64_t count = ElementCount(shape);
    for (uint64_t begin = 0; begin <= count; ++begin) {
      for (uint64_t end = begin; end <= count; ++end) {
        const std::vector<Box> boxes = BoxesOfRange(shape, begin, end);
        std::vector<uint64_t> expected(end - begin);
        std::iota(expected.begin(), expected.end(), begin);
        ASSERT_EQ(ElementsOf(shape, boxes), expected);
        ASSERT_LE(boxes.size(), std::max<size_t>(2 * shape.size(), 1));
      }
    }
  }
}

TEST(FindOverlap, NamesOneOfTwoBoxesThatShareAnElement) {
  const Box upper = {{0, 0}, {2, 4}};
  const Box lower = {{2, 0}, {2, 4}};
  EXPECT_EQ(FindOverlap({upper, lower}), std::nullopt);
  EXPECT_TRUE(FindOverlap({upper, lower, {{1, 3}, {2, 1}}}).has_value());
}

}  // namespace
}  // namespace ckptd
