#include "common/source/tiling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace ckptd {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

TEST(WhyNoTiling, TakesBoxesThatHoldEachElementOnce) {
  EXPECT_EQ(WhyNoTiling({}, std::vector<Box>{{{}, {}}}), "");
  EXPECT_EQ(WhyNoTiling({5}, std::vector<Box>{{{2}, {3}}, {{0}, {2}}}), "");
  EXPECT_EQ(WhyNoTiling({2, 3}, std::vector<Box>{{{0, 0}, {2, 1}}, {{0, 1}, {1, 2}}, {{1, 1}, {1, 2}}}),
            "");
  // No plane cuts it in two.
  EXPECT_EQ(WhyNoTiling({3, 3}, std::vector<Box>{{{0, 0}, {1, 2}},
                                                 {{0, 2}, {2, 1}},
                                                 {{2, 1}, {1, 2}},
                                                 {{1, 0}, {2, 1}},
                                                 {{1, 1}, {1, 1}}}),
            "");
}

TEST(WhyNoTiling, TakesNoNoticeOfBoxesWithoutElements) {
  EXPECT_EQ(WhyNoTiling({0, 4}, std::vector<Box>{}), "");
  EXPECT_EQ(WhyNoTiling({2}, std::vector<Box>{{{0}, {2}}, {{9}, {0}}, {{1}, {0}}}), "");
}

TEST(WhyNoTiling, NamesTwoBoxesThatOverlap) {
  EXPECT_EQ(WhyNoTiling({4}, std::vector<Box>{{{0}, {3}}, {{2}, {2}}}),
            "the chunk of (3) at (0) overlaps the one of (2) at (2)");
  EXPECT_THAT(WhyNoTiling({}, std::vector<Box>{{{}, {}}, {{}, {}}}), HasSubstr("overlaps"));
  // As many elements as the tensor has, and a hole.
  EXPECT_THAT(WhyNoTiling({2, 2}, std::vector<Box>{{{0, 0}, {1, 2}}, {{0, 0}, {2, 1}}}),
              HasSubstr("overlaps"));
}

TEST(WhyNoTiling, CountsElementsThatAreInNoBox) {
  EXPECT_EQ(WhyNoTiling({4, 3}, std::vector<Box>{{{0, 0}, {3, 3}}}),
            "3 of its 12 elements are in no chunk");
  EXPECT_EQ(WhyNoTiling({7}, std::vector<Box>{}), "7 of its 7 elements are in no chunk");
}

TEST(WhyNoTiling, RefusesBoxesThatLeaveTheTensor) {
  EXPECT_THAT(WhyNoTiling({4}, std::vector<Box>{{{0}, {5}}}), HasSubstr("leaves its shape (4)"));
  EXPECT_THAT(WhyNoTiling({4}, std::vector<Box>{{{5}, {1}}}), HasSubstr("leaves"));
  EXPECT_THAT(WhyNoTiling({4}, std::vector<Box>{{{kMost}, {kMost}}}), HasSubstr("leaves"));
  EXPECT_THAT(WhyNoTiling({4}, std::vector<Box>{{{0, 0}, {2, 2}}}), HasSubstr("leaves"));
  EXPECT_THAT(WhyNoTiling({kMost, 2}, std::vector<Box>{{{0, 0}, {kMost, 2}}}),
              HasSubstr("larger than any memory"));
}

// Rows that are cut at places of their own: many more cells than boxes.
std::vector<Box> Ragged(uint64_t rows) {
  std::vector<Box> boxes;
  for (uint64_t row = 0; row < rows; ++row) {
    boxes.push_back({{row, 0}, {1, row + 1}});
    boxes.push_back({{row, row + 1}, {1, rows - row}});
  }
  return boxes;
}

TEST(WhyNoTiling, ComparesBoxesThatLieOnNoGrid) {
  std::vector<Box> boxes = Ragged(200);
  EXPECT_EQ(WhyNoTiling({200, 201}, boxes), "");
  ++boxes[100].extents[1];
  EXPECT_EQ(WhyNoTiling({200, 201}, boxes),
            "the chunk of (1, 52) at (50, 0) overlaps the one of (1, 150) at (50, 51)");
}

TEST(WhyNoTiling, RefusesMoreOfThemThanCanBeCompared) {
  EXPECT_EQ(WhyNoTiling({5000, 5001}, Ragged(5000)),
            "its 10000 chunks lie on no grid, and are too many to be compared");
}

TEST(WhyNoTiling, CountsTheDimensionsOfThoseThatAreCompared) {
  std::vector<Box> boxes = Ragged(1000);
  const size_t more = 38;
  for (Box& box : boxes) {
    box.offsets.insert(box.offsets.begin(), more, 0);
    box.extents.insert(box.extents.begin(), more, 1);
  }
  Shape shape(more, 1);
  shape.insert(shape.end(), {1000, 1001});
  EXPECT_EQ(WhyNoTiling(shape, boxes),
            "its 2000 chunks lie on no grid, and are too many to be compared");
}

TEST(WhyNoTiling, TakesALargeGrid) {
  std::vector<Box> boxes;
  for (uint64_t layer = 0; layer < 60; ++layer) {
    for (uint64_t expert = 0; expert < 256; ++expert) {
      for (uint64_t rank = 0; rank < 8; ++rank) {
        boxes.push_back({{layer, expert, rank * 16, 0}, {1, 1, 16, 32}});
      }
    }
  }
  EXPECT_EQ(WhyNoTiling({60, 256, 128, 32}, boxes), "");
  boxes[77].offsets[1] += 1;
  EXPECT_THAT(WhyNoTiling({60, 256, 128, 32}, boxes), HasSubstr("overlaps"));
}

}  // namespace
}  // namespace ckptd
