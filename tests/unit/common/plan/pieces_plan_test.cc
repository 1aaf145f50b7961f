// Plans of sources in pieces with strides, carried out run by run, against the same tensors as
// they would be in row-major order.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "common/base/byte_swap.h"
#include "common/base/reasons.h"
#include "common/plan/group_plan.h"
#include "common/plan/plan.h"
#include "common/plan/plan_match.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/pieces_source.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using Files = std::vector<std::vector<std::byte>>;

void CarryOut(const CopyOp& op, const Files& files, uint64_t from, uint64_t to, uint32_t dim,
              std::vector<std::byte>& slab) {
  if (dim == op.dims) {
    ASSERT_LE(from + op.run_bytes, files[op.file].size());
    SwapBytes(op.swap, files[op.file].data() + from, slab.data() + to, op.run_bytes);
    NegateNumbers(NumberBytesOf(op.from), op.negate, slab.data() + to, op.run_bytes);
    return;
  }
  for (uint64_t i = 0; i < op.count[dim]; ++i) {
    CarryOut(op, files, from + i * op.file_stride[dim], to + i * op.slab_stride[dim], dim + 1, slab);
  }
}

// Name -> its bytes on the rank.
std::map<std::string, std::vector<std::byte>> Load(const RankPlan& plan, const Files& files) {
  std::vector<std::byte> slab(plan.slab_bytes, std::byte{0xee});
  for (const CopyOp& op : plan.ops) CarryOut(op, files, op.file_offset, op.slab_offset, 0, slab);
  std::map<std::string, std::vector<std::byte>> tensors;
  for (const PlannedTensor& tensor : plan.tensors) {
    const auto begin = slab.begin() + static_cast<ptrdiff_t>(tensor.offset);
    tensors[tensor.name] = {begin, begin + static_cast<ptrdiff_t>(tensor.bytes)};
  }
  return tensors;
}

class PlansOfPieces : public testing::TestWithParam<uint64_t> {};

TEST_P(PlansOfPieces, PutTheBytesWhereThoseOfOneRowMajorPieceGo) {
  const PiecesSource source(GetParam(), 40);
  for (const char* layout : {"replicate:1", "fsdp:3", "hsdp:2x2",
                             R"j({"world_size": 2, "meshes": {"m": {"shape": [2]}},
                                  "default": {"mesh": "m", "placements": ["shard(-1)"]}})j"}) {
    ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse(layout));
    for (uint32_t rank = 0; rank < rules.world_size(); ++rank) {
      ASSERT_OK_AND_ASSIGN(const RankLayout wanted, rules.ForRank(source.index, rank));
      ASSERT_OK_AND_ASSIGN(const RankPlan plan, PlanRank(source.index, wanted, {}));
      ASSERT_OK_AND_ASSIGN(const RankPlan plain, PlanRank(source.plain, wanted, {}));
      EXPECT_EQ(Load(plan, source.contents), Load(plain, {source.plain_content}))
          << layout << " rank " << rank;
    }
  }
}

TEST_P(PlansOfPieces, ReadEachNeededByteOnce) {
  const PiecesSource source(GetParam(), 40);
  ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse("fsdp:3"));
  std::vector<uint32_t> ranks = {0, 1, 2};
  const auto index = std::make_shared<const CheckpointIndex>(source.index);
  ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index, ranks));
  ASSERT_OK_AND_ASSIGN(const GroupPlan group, GroupPlan::Make(index, cohorts, {}));
  Files touched = {Files::value_type(source.contents[0].size()),
                   Files::value_type(source.contents[1].size())};
  std::vector<RankPlan> plans;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_OK_AND_ASSIGN(const RankLayout wanted, rules.ForRank(*index, rank));
    ASSERT_OK_AND_ASSIGN(plans.emplace_back(), PlanRank(*index, wanted, {}));
    for (CopyOp op : plans.back().ops) {
      for (uint64_t run = 0; run < op.runs(); ++run) {
        uint64_t rest = run;
        uint64_t at = op.file_offset;
        for (uint32_t dim = op.dims; dim-- > 0; rest /= op.count[dim]) {
          at += rest % op.count[dim] * op.file_stride[dim];
        }
        std::memset(touched[op.file].data() + at, 1, op.run_bytes);
      }
    }
  }
  std::vector<uint64_t> expected;
  for (const auto& file : touched) {
    expected.push_back(static_cast<uint64_t>(std::count(file.begin(), file.end(), std::byte{1})));
  }
  EXPECT_EQ(ReadBytesPerFile(*index, plans), expected);
  EXPECT_EQ(group.ReadBytes(), expected);
}

TEST_P(PlansOfPieces, AreCutIntoWindowsThatShareNoByte) {
  const PiecesSource source(GetParam(), 40);
  const auto index = std::make_shared<const CheckpointIndex>(source.index);
  ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse("fsdp:2"));
  const std::vector<uint32_t> numbers = {0, 1};
  ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index, numbers));
  ASSERT_OK_AND_ASSIGN(const GroupPlan group, GroupPlan::Make(index, cohorts, {}));
  const std::vector<const PlannedRank*> ranks = {group.Find(0), group.Find(1)};
  std::vector<uint64_t> reached(2);
  for (const PlanWindow& window : group.Windows(ranks, 1)) {
    const GroupPlan::Open open = group.OpenWindow(window);
    std::vector<uint64_t> ends = reached;
    for (const PlannedRank* rank : ranks) {
      ASSERT_OK_AND_ASSIGN(const RankPlan part, open.PlanOf(*rank));
      for (const CopyOp& op : part.ops) {
        EXPECT_GE(op.file_offset, reached[op.file]);
        ends[op.file] = std::max(ends[op.file], op.file_end());
      }
    }
    reached = ends;
  }
}

INSTANTIATE_TEST_SUITE_P(Random, PlansOfPieces, testing::Range<uint64_t>(1, 41));

// A tensor of U32, 2 x 3, in one piece.
CheckpointIndex Strided(const Shape& strides, uint64_t file_bytes = 1000) {
  CheckpointIndex index;
  index.files.resize(1);
  index.files[0].bytes = file_bytes;
  TensorEntry tensor;
  tensor.name = "x";
  tensor.dtype = Dtype::kU32;
  tensor.shape = {2, 3};
  Piece piece;
  piece.offset = 8;
  piece.bytes = 24;
  piece.box = WholeOf(tensor.shape);
  piece.strides = strides;
  tensor.pieces = {piece};
  index.tensors = {tensor};
  return index;
}

absl::StatusOr<RankPlan> PlanOf(const CheckpointIndex& index) {
  return PlanRank(index, AskFor({"x"}, {}, MeshOf({1})), {});
}

TEST(StridedPiece, InRowMajorOrderIsPlannedAsOneWithoutStrides) {
  ASSERT_OK_AND_ASSIGN(const RankPlan spelled, PlanOf(Strided({3, 1})));
  ASSERT_OK_AND_ASSIGN(const RankPlan plain, PlanOf(Strided({})));
  EXPECT_EQ(spelled.digest, plain.digest);
  ASSERT_EQ(spelled.ops.size(), 1u);
  EXPECT_EQ(spelled.ops[0].dims, 0u);
}

TEST(BigEndianPiece, IsAnotherPlan) {
  CheckpointIndex index = Strided({});
  ASSERT_OK_AND_ASSIGN(const RankPlan little, PlanOf(index));
  index.tensors[0].big_endian = true;
  ASSERT_OK_AND_ASSIGN(const RankPlan big, PlanOf(index));
  EXPECT_NE(big.digest, little.digest);
  EXPECT_EQ(little.ops[0].swap, 1u);
  EXPECT_EQ(big.ops[0].swap, 4u);
  EXPECT_NE(MatchPlans(little, big).differs, "");
  index.tensors[0].dtype = Dtype::kC64;
  index.tensors[0].pieces[0].bytes *= 2;
  ASSERT_OK_AND_ASSIGN(const RankPlan complex, PlanOf(index));
  EXPECT_EQ(complex.ops[0].swap, 4u) << "each of the two numbers is turned round by itself";
}

TEST(NegatedPiece, IsAnotherPlan) {
  CheckpointIndex index = Strided({});
  ASSERT_OK_AND_ASSIGN(const RankPlan plain, PlanOf(index));
  index.tensors[0].negates_real = true;
  ASSERT_OK_AND_ASSIGN(const RankPlan negated, PlanOf(index));
  EXPECT_NE(negated.digest, plain.digest);
  EXPECT_EQ(negated.ops[0].negate, Signs::kBoth);
  EXPECT_NE(MatchPlans(plain, negated).differs, "");
  index.tensors[0].dtype = Dtype::kC64;
  index.tensors[0].pieces[0].bytes *= 2;
  index.tensors[0].negates_real = false;
  index.tensors[0].negates_imaginary = true;
  ASSERT_OK_AND_ASSIGN(const RankPlan conjugated, PlanOf(index));
  EXPECT_EQ(conjugated.ops[0].negate, Signs::kSecond);
}

TEST(BigEndianPiece, OfSingleBytesIsThePlanThatItAlwaysWas) {
  CheckpointIndex index = Strided({});
  index.tensors[0].dtype = Dtype::kU8;
  index.tensors[0].pieces[0].bytes = 6;
  ASSERT_OK_AND_ASSIGN(const RankPlan little, PlanOf(index));
  index.tensors[0].big_endian = true;
  ASSERT_OK_AND_ASSIGN(const RankPlan big, PlanOf(index));
  EXPECT_EQ(big.digest, little.digest);
}

TEST(StridedPiece, ThatIsTransposedIsOneCopyInTheOrderOfTheFile) {
  ASSERT_OK_AND_ASSIGN(const RankPlan plan, PlanOf(Strided({1, 2})));
  ASSERT_EQ(plan.ops.size(), 1u);
  const CopyOp& op = plan.ops[0];
  EXPECT_EQ(op.run_bytes, 4u);
  ASSERT_EQ(op.dims, 2u);
  EXPECT_EQ(op.file_stride[0], 8u);
  EXPECT_EQ(op.file_stride[1], 4u);
  EXPECT_EQ(op.slab_stride[0], 4u);
  EXPECT_EQ(op.slab_stride[1], 12u);
}

TEST(StridedPiece, ThatIsExpandedReadsTheSameBytesForEachCopy) {
  ASSERT_OK_AND_ASSIGN(const RankPlan plan, PlanOf(Strided({0, 1})));
  ASSERT_EQ(plan.ops.size(), 2u);
  EXPECT_EQ(plan.ops[0].file_offset, plan.ops[1].file_offset);
  EXPECT_EQ(ReadBytesPerFile(Strided({0, 1}), {plan}), std::vector<uint64_t>{12});
}

TEST(StridedPiece, ThatEndsBehindItsFileIsRefused) {
  EXPECT_OK(PlanOf(Strided({10, 1}, 8 + 52)));
  EXPECT_THAT(PlanOf(Strided({10, 1}, 8 + 51)),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(StridedPiece, WhoseStridesPass64BitsIsRefused) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  for (const Shape& strides : {Shape{most, 1}, Shape{1, most}, Shape{most / 2, most / 4 + 1}}) {
    EXPECT_THAT(PlanOf(Strided(strides, most)),
                FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
  }
}

TEST(StridedPiece, WithoutAStrideForEachDimensionIsRefused) {
  EXPECT_THAT(PlanOf(Strided({1})), FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(StridedPiece, ExpandedIntoTooManyCopiesIsRefused) {
  CheckpointIndex index = Strided({0, 1});
  index.tensors[0].shape = {5'000'000, 3};
  index.tensors[0].pieces[0].box = WholeOf({5'000'000, 3});
  index.tensors[0].pieces[0].bytes = 60'000'000;
  EXPECT_THAT(PlanOf(index),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

}  // namespace
}  // namespace ckptd
