#include "common/source/piece.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "common/source/piece_reader.h"
#include "common/source/registry.h"
#include "tests/testing/pieces_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

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

// Of a U8 tensor that is all of it.
Piece PieceOf(const Shape& shape, const Shape& strides, uint64_t offset = 100) {
  Piece piece;
  piece.offset = offset;
  piece.bytes = ElementCount(shape);
  piece.box = {Shape(shape.size(), 0), shape};
  piece.strides = strides;
  return piece;
}

std::vector<std::pair<uint64_t, uint64_t>> RunsOf(const Piece& piece, Dtype dtype = Dtype::kU8) {
  std::vector<std::pair<uint64_t, uint64_t>> runs;
  for (PieceRuns run(piece, dtype); !run.done(); run.Next()) {
    runs.emplace_back(run.offset(), run.bytes());
  }
  return runs;
}

TEST(CompactStrides, LeavesNothingOfRowMajorOrder) {
  EXPECT_THAT(CompactStrides({2, 3}, {3, 1}), IsEmpty());
  EXPECT_THAT(CompactStrides({2, 1, 3}, {3, 77, 1}), IsEmpty()) << "one index has no next one";
  EXPECT_THAT(CompactStrides({0, 3}, {5, 5}), IsEmpty()) << "nothing lies anywhere";
  EXPECT_THAT(CompactStrides({2, 3}, {1, 2}), ElementsAre(1, 2));
  EXPECT_THAT(CompactStrides({kMost, kMost, 2}, {0, 2, 1}), ElementsAre(0, 2, 1));
}

TEST(StridesOf, SpellsRowMajorOrder) {
  EXPECT_THAT(StridesOf(PieceOf({2, 3, 4}, {})), ElementsAre(12, 4, 1));
  EXPECT_THAT(StridesOf(PieceOf({2, 3}, {1, 2})), ElementsAre(1, 2));
}

TEST(PieceRuns, OfRowMajorOrderIsOne) {
  EXPECT_THAT(RunsOf(PieceOf({2, 3}, {})), ElementsAre(Pair(100, 6)));
  EXPECT_THAT(RunsOf(PieceOf({2, 3}, {1, 2})), ElementsAre(Pair(100, 6))) << "transposed";
}

TEST(PieceRuns, LeaveGapsOut) {
  EXPECT_THAT(RunsOf(PieceOf({2, 3}, {10, 1})), ElementsAre(Pair(100, 3), Pair(110, 3)));
  EXPECT_THAT(RunsOf(PieceOf({2, 2}, {8, 2}), Dtype::kBF16),
              ElementsAre(Pair(100, 2), Pair(104, 2), Pair(116, 2), Pair(120, 2)));
}

TEST(PieceRuns, VisitWhatIsExpandedOnce) {
  EXPECT_THAT(RunsOf(PieceOf({5, 3}, {0, 1})), ElementsAre(Pair(100, 3)));
}

TEST(PieceRuns, OfNothingAreNone) { EXPECT_THAT(RunsOf(PieceOf({0, 3}, {})), IsEmpty()); }

TEST(SpanOf, ReachesOverGaps) {
  EXPECT_EQ(SpanOf(PieceOf({2, 3}, {10, 1}), Dtype::kU8), 13u);
  EXPECT_EQ(SpanOf(PieceOf({2, 3}, {}), Dtype::kU8), 6u);
  EXPECT_EQ(SpanOf(PieceOf({0, 3}, {10, 1}), Dtype::kU8), 0u);
}

class ImpossiblePiece : public testing::Test {
 protected:
  std::string Why(const Piece& piece, uint64_t file_bytes = 1000) const {
    return std::string(WhyImpossible(piece, tensor_, file_bytes));
  }
  TensorEntry tensor_{.name = "x", .dtype = Dtype::kU8, .shape = {2, 3}};
  Piece piece_ = PieceOf({2, 3}, {});
};

TEST_F(ImpossiblePiece, IsNoneThatFits) {
  EXPECT_EQ(Why(piece_), "");
  EXPECT_EQ(Why(piece_, 106), "");
  EXPECT_EQ(Why(PieceOf({2, 3}, {10, 1}), 113), "");
}

TEST_F(ImpossiblePiece, LeavesItsTensor) {
  piece_.box.offsets = {1, 0};
  EXPECT_THAT(Why(piece_), HasSubstr("leaves the tensor"));
  piece_.box.offsets = {kMost, 0};
  EXPECT_THAT(Why(piece_), HasSubstr("leaves the tensor"));
  piece_.box.offsets = {0};
  EXPECT_THAT(Why(piece_), HasSubstr("leaves the tensor"));
}

TEST_F(ImpossiblePiece, CountsOtherBytesThanItsBox) {
  piece_.bytes = 5;
  EXPECT_THAT(Why(piece_), HasSubstr("number of bytes"));
}

TEST_F(ImpossiblePiece, LeavesItsFile) {
  EXPECT_THAT(Why(piece_, 105), HasSubstr("ends behind"));
  EXPECT_THAT(Why(piece_, 99), HasSubstr("begins behind"));
  piece_.offset = kMost;
  EXPECT_THAT(Why(piece_, kMost), HasSubstr("ends behind"));
  EXPECT_THAT(Why(PieceOf({2, 3}, {10, 1}), 112), HasSubstr("ends behind"));
}

TEST_F(ImpossiblePiece, HasStridesThatCannotBe) {
  EXPECT_THAT(Why(PieceOf({2, 3}, {1})), HasSubstr("one stride per dimension"));
  EXPECT_THAT(Why(PieceOf({2, 3}, {kMost, 1}), kMost), HasSubstr("64 bits"));
  tensor_.dtype = Dtype::kF4;
  Piece piece = PieceOf({2, 3}, {1, 2});
  piece.bytes = 3;
  EXPECT_THAT(Why(piece), HasSubstr("less than a byte"));
}

class PieceReaders : public testing::TestWithParam<uint64_t> {};

TEST_P(PieceReaders, ReadTheRunsOneBehindTheOtherInBlocksOfAnySize) {
  PiecesSource source(GetParam(), 20);
  TempFolder folder;
  source.Write(folder.path());
  for (const TensorEntry& tensor : source.index.tensors) {
    for (const Piece& piece : tensor.pieces) {
      ASSERT_OK_AND_ASSIGN(const auto object, OpenObject(source.index.files[piece.file].path));
      std::vector<std::byte> expected;
      for (PieceRuns run(piece, tensor.dtype); !run.done(); run.Next()) {
        const auto begin =
            source.contents[piece.file].begin() + static_cast<ptrdiff_t>(run.offset());
        expected.insert(expected.end(), begin, begin + static_cast<ptrdiff_t>(run.bytes()));
      }
      PieceReader reader(*object, piece, tensor.dtype);
      std::vector<std::byte> block(1 + GetParam() % 17);
      std::vector<std::byte> all;
      size_t n = 0;
      do {
        ASSERT_OK_AND_ASSIGN(n, reader.Read(block));
        all.insert(all.end(), block.begin(), block.begin() + static_cast<ptrdiff_t>(n));
      } while (n == block.size());
      EXPECT_EQ(all, expected) << tensor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Random, PieceReaders, testing::Range<uint64_t>(1, 21));

}  // namespace
}  // namespace ckptd
