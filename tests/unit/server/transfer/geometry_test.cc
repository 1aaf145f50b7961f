#include "server/transfer/geometry.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// Columns of a matrix of 4 rows of 100 bytes: 10 bytes of each.
CopyOp Columns() {
  CopyOp op;
  op.from = op.to = Dtype::kU8;
  op.file_offset = 1000;
  op.slab_offset = 512;
  op.run_bytes = 10;
  op.dims = 1;
  op.count[0] = 4;
  op.file_stride[0] = 100;
  op.slab_stride[0] = 10;
  return op;
}

auto IsRefused() { return FailsWith(absl::StatusCode::kInternal, reason::kCoverage); }

TEST(Geometry, SpansFromTheFirstRunToTheEndOfTheLast) {
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(Columns(), 512));
  EXPECT_EQ(g.begin, 1000U);
  EXPECT_EQ(g.end, 1310U);
}

TEST(Geometry, FoldsLoopsThatContinueARunOnBothSides) {
  CopyOp op = Columns();
  op.file_stride[0] = 10;
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(op, 512));
  EXPECT_EQ(g.dims, 0U);
  EXPECT_EQ(g.run_source, 40U);
}

TEST(Geometry, KeepsLoopsThatContinueARunOnOneSideOnly) {
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(Columns(), 512));
  EXPECT_EQ(g.dims, 1U);
  EXPECT_TRUE(g.dense_local);
}

TEST(Geometry, CountsLocalBytesBeforeAnySourcePosition) {
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(Columns(), 512));
  uint64_t expected = 0;
  for (uint64_t at = 990; at < 1400; ++at) {
    ASSERT_EQ(LocalBytesBefore(g, at), expected) << at;
    if (at >= 1000 && at < 1310 && (at - 1000) % 100 < 10) ++expected;
  }
}

TEST(Geometry, CountsBytesOfTheTargetTypeWhenItCasts) {
  CopyOp op = Columns();
  op.from = Dtype::kBF16;
  op.to = Dtype::kF32;
  op.slab_stride[0] = 20;
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(op, 512));
  EXPECT_EQ(g.local_bytes(), 80U);
}

TEST(Geometry, HasNoBytesWhenALoopRunsNever) {
  CopyOp op = Columns();
  op.count[0] = 0;
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(op, 512));
  EXPECT_EQ(g.begin, g.end);
}

TEST(Geometry, RefusesRunsThatOverlapInTheFile) {
  CopyOp op = Columns();
  op.file_stride[0] = 9;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, RefusesRunsThatOverlapInTheSlab) {
  CopyOp op = Columns();
  op.slab_stride[0] = 9;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

// The columns of a matrix become rows: the inner loop takes the longer steps in the slab.
CopyOp Transposed() {
  CopyOp op = Columns();
  op.run_bytes = 1;
  op.dims = 2;
  op.count = {3, 4};
  op.file_stride = {4, 1};
  op.slab_stride = {1, 3};
  return op;
}

TEST(Geometry, TakesRunsThatDoNotAscendInTheSlab) {
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(Transposed(), 512));
  EXPECT_FALSE(g.ascends_local);
  EXPECT_FALSE(g.dense_local);
  EXPECT_EQ(g.end, 1012U);
  EXPECT_EQ(g.local_bytes(), 12U);
}

TEST(Geometry, RefusesRunsThatOverlapInTheSlabInAnyOrder) {
  CopyOp op = Transposed();
  op.slab_stride = {1, 2};
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
  op.slab_stride = {3, 3};
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, RefusesAStartBeforeItsTensor) {
  EXPECT_THAT(MakeGeometry(Columns(), 1024), IsRefused());
}

TEST(Geometry, RefusesSizesThatDoNotFit64Bits) {
  CopyOp op = Columns();
  op.count[0] = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, RefusesAnEndThatDoesNotFit64Bits) {
  CopyOp op = Columns();
  op.file_offset = std::numeric_limits<uint64_t>::max() - 100;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, RefusesMoreLoopsThanACopyHas) {
  CopyOp op = Columns();
  op.dims = CopyOp::kMaxDims + 1;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, RefusesACastOfATypeThatCannotBeCast) {
  CopyOp op = Columns();
  op.to = Dtype::kF32;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, RefusesACastThatCutsAnElement) {
  CopyOp op = Columns();
  op.from = Dtype::kBF16;
  op.to = Dtype::kF32;
  op.slab_stride[0] = 20;
  op.file_stride[0] = 101;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused());
}

TEST(Geometry, CountsTheBytesOfNumbersThatAreTurnedRound) {
  CopyOp op = Columns();
  op.from = op.to = Dtype::kC64;
  op.swap = 4;
  op.run_bytes = 16;
  op.slab_stride[0] = 16;
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(op, 512));
  EXPECT_TRUE(g.converts());
  EXPECT_FALSE(g.casts());
  EXPECT_EQ(g.run_local, 16U);
  EXPECT_EQ(g.from_size, 4U);
  Geometry as_it_is = g;
  as_it_is.swap = 1;
  EXPECT_FALSE(SameCopy(g, as_it_is));
}

TEST(Geometry, RefusesToTurnRoundWhatIsNoNumber) {
  CopyOp op = Columns();
  op.from = op.to = Dtype::kF32;
  op.run_bytes = 16;
  op.slab_stride[0] = 16;
  for (const uint32_t swap : {0U, 2U, 8U, 3U}) {
    op.swap = swap;
    EXPECT_THAT(MakeGeometry(op, 512), IsRefused()) << swap;
  }
  op.swap = 4;
  EXPECT_OK(MakeGeometry(op, 512));
  op.run_bytes = 10;
  EXPECT_THAT(MakeGeometry(op, 512), IsRefused()) << "a run cuts a number";
}

TEST(RunCursor, VisitsTheRunsOfTwoLoopsFromAnyPosition) {
  CopyOp op = Columns();
  op.dims = 2;
  op.count = {3, 4};
  op.file_stride = {1000, 100};
  op.slab_stride = {40, 10};
  ASSERT_OK_AND_ASSIGN(const Geometry g, MakeGeometry(op, 512));
  for (uint64_t at = 990; at < 3400; ++at) {
    const RunCursor cursor(g, at);
    uint64_t index = 0;  // index of the first run that ends past `at`
    while (index < 12 && 1000 + index / 4 * 1000 + index % 4 * 100 + 10 <= at) ++index;
    ASSERT_EQ(cursor.done(), index == 12) << at;
    if (index == 12) continue;
    ASSERT_EQ(cursor.index(), index) << at;
    ASSERT_EQ(cursor.local(), index * 10) << at;
  }
}

}  // namespace
}  // namespace ckptd
