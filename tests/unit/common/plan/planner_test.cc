#include "common/base/reasons.h"
#include "common/plan/plan.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// The example tensor of the format notes: (5,3), values 0..14, four ranks.
class FiveByThree : public ::testing::Test {
 protected:
  FiveByThree() { source_.Add("x", {5, 3}); }
  std::vector<uint32_t> Load(const Sharding& sharding, uint32_t rank) {
    return source_.Load(PlanRow(source_, {"x"}, sharding, MeshOf({4}), rank), "x");
  }
  FakeSource source_;
};

TEST_F(FiveByThree, IsShardedByRows) {
  EXPECT_THAT(Load(OnMesh({ShardOf(0)}), 0), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(Load(OnMesh({ShardOf(0)}), 1), ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(Load(OnMesh({ShardOf(0)}), 2), ElementsAre(12, 13, 14));
  EXPECT_THAT(Load(OnMesh({ShardOf(0)}), 3), IsEmpty());
}

TEST_F(FiveByThree, IsShardedByColumns) {
  EXPECT_THAT(Load(OnMesh({ShardOf(1)}), 0), ElementsAre(0, 3, 6, 9, 12));
  EXPECT_THAT(Load(OnMesh({ShardOf(1)}), 1), ElementsAre(1, 4, 7, 10, 13));
  EXPECT_THAT(Load(OnMesh({ShardOf(1)}), 2), ElementsAre(2, 5, 8, 11, 14));
  EXPECT_THAT(Load(OnMesh({ShardOf(1)}), 3), IsEmpty());
}

TEST_F(FiveByThree, IsReplicatedWhole) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(Load(OnMesh({Replicate()}), rank), SizeIs(15));
  }
}

TEST_F(FiveByThree, HasThePaddedSizeOfFsdpOnEveryRank) {
  Sharding sharding = OnMesh({ShardOf(0)});
  sharding.padded_dim = 0;
  const std::vector<uint64_t> bytes = {24, 24, 12, 0};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const RankPlan plan = PlanRow(source_, {"x"}, sharding, MeshOf({4}), rank);
    EXPECT_EQ(plan.tensors[0].bytes, bytes[rank]);
    EXPECT_EQ(plan.tensors[0].padded_bytes, 24u);
    EXPECT_EQ(plan.slab_bytes, kSlabAlignment);
  }
}

TEST_F(FiveByThree, KeepsTheShapeOfAnEmptyShard) {
  const RankPlan plan = PlanRow(source_, {"x"}, OnMesh({ShardOf(0)}), MeshOf({4}), 3);
  EXPECT_THAT(plan.tensors[0].shape, ElementsAre(0, 3));
  EXPECT_EQ(plan.slab_bytes, 0u);
  EXPECT_THAT(plan.ops, IsEmpty());
}

// Two-dimensional examples: mesh (dp=2, tp=2).
TEST(TwoDimensions, ShardAsFsdpWithTensorParallelism) {
  FakeSource source;
  source.Add("colwise", {8, 3});
  source.Add("rowwise", {4, 6});
  source.Add("norm", {4});
  const Mesh mesh = MeshOf({2, 2});
  const auto load = [&](const std::string& name, std::vector<Placement> placements,
                        uint32_t rank) {
    return source.Load(PlanRow(source, {name}, OnMesh(std::move(placements)), mesh, rank), name);
  };
  EXPECT_THAT(load("colwise", {StridedShardOf(0, 2), ShardOf(0)}, 1),
              ElementsAre(12, 13, 14, 15, 16, 17));
  EXPECT_THAT(load("colwise", {StridedShardOf(0, 2), ShardOf(0)}, 2),
              ElementsAre(6, 7, 8, 9, 10, 11));
  EXPECT_THAT(load("rowwise", {ShardOf(0), ShardOf(1)}, 1), ElementsAre(3, 4, 5, 9, 10, 11));
  EXPECT_THAT(load("rowwise", {ShardOf(0), ShardOf(1)}, 2),
              ElementsAre(12, 13, 14, 18, 19, 20));
  EXPECT_THAT(load("norm", {ShardOf(0), Replicate()}, 1), ElementsAre(0, 1));
  EXPECT_THAT(load("norm", {ShardOf(0), Replicate()}, 3), ElementsAre(2, 3));
}

TEST(Slab, FollowsTheFilesWhileTensorsAreSortedByName) {
  FakeSource source;
  source.Add("z", {3});
  source.Add("a", {200});
  source.Add("m", {1});
  const RankPlan plan = PlanRow(source, {"a", "m", "z"}, Sharding{}, MeshOf({1}), 0);
  ASSERT_THAT(plan.tensors, SizeIs(3));
  EXPECT_EQ(plan.tensors[0].name, "a");
  EXPECT_EQ(plan.tensors[0].offset, 512u);
  EXPECT_EQ(plan.tensors[1].name, "m");
  EXPECT_EQ(plan.tensors[1].offset, 512u + 1024u);
  EXPECT_EQ(plan.tensors[2].name, "z");
  EXPECT_EQ(plan.tensors[2].offset, 0u);
  EXPECT_EQ(plan.slab_bytes, 2048u);
  EXPECT_EQ(plan.tensor_bytes, 204u * 4);
}

TEST(Slab, HasEqualOffsetsOnAllRanksOfAPaddedLayout) {
  FakeSource source;
  source.Add("b", {301, 3});
  source.Add("a", {7, 100});
  Sharding sharding = OnMesh({ShardOf(0)});
  sharding.padded_dim = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const RankPlan plan = PlanRow(source, {"a", "b"}, sharding, MeshOf({4}), rank);
    EXPECT_EQ(plan.tensors[1].offset, 0u);
    EXPECT_EQ(plan.tensors[0].offset, 1024u);
  }
}

TEST(Slab, LeavesOutTensorsOfMeshesWithoutTheRank) {
  FakeSource source;
  source.Add("x", {4});
  Mesh mesh = MeshOf({1});
  mesh.ranks = {1};
  RankLayout layout = AskFor({"x"}, OnMesh({ShardOf(0)}), mesh, 0);
  EXPECT_THAT(Plan(source, layout).tensors, IsEmpty());
}

TEST(Ops, AreOneRunForADimensionZeroShard) {
  FakeSource source;
  source.Add("x", {8, 3, 5});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(0)}), MeshOf({4}), 1);
  ASSERT_THAT(plan.ops, SizeIs(1));
  EXPECT_EQ(plan.ops[0].dims, 0u);
  EXPECT_EQ(plan.ops[0].file_offset, 2u * 15 * 4);
  EXPECT_EQ(plan.ops[0].run_bytes, 2u * 15 * 4);
}

TEST(Ops, MergeOuterDimensionsOfAColumnShard) {
  FakeSource source;
  source.Add("x", {4, 5, 6});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(2)}), MeshOf({2}), 1);
  ASSERT_THAT(plan.ops, SizeIs(1));
  const CopyOp& op = plan.ops[0];
  EXPECT_EQ(op.dims, 1u);
  EXPECT_EQ(op.count[0], 20u);
  EXPECT_EQ(op.run_bytes, 12u);
  EXPECT_EQ(op.file_stride[0], 24u);
  EXPECT_EQ(op.slab_stride[0], 12u);
  EXPECT_EQ(op.source_bytes(), 240u);
  EXPECT_EQ(op.file_end(), 480u);
}

TEST(Ops, AreSortedByFileOffset) {
  FakeSource source;
  source.Add("c", {4});
  source.Add("a", {4});
  source.Add("b", {4});
  const RankPlan plan = PlanRow(source, {"a", "b", "c"}, Sharding{}, MeshOf({1}), 0);
  std::vector<std::string> names;
  for (const CopyOp& op : plan.ops) names.push_back(plan.tensors[op.tensor].name);
  EXPECT_THAT(names, ElementsAre("c", "a", "b"));
}

TEST(Ops, AreSortedAlsoWithinATensorOfManyPieces) {
  FakeSource source;
  source.AddInPieces("x", {4}, {{{2}, {2}}, {{0}, {2}}});
  std::vector<Piece>& pieces = source.index().tensors[0].pieces;
  std::swap(pieces[0], pieces[1]);
  const RankPlan plan = PlanRow(source, {"x"}, Sharding{}, MeshOf({1}), 0);
  ASSERT_THAT(plan.ops, SizeIs(2));
  EXPECT_EQ(plan.ops[0].file_offset, 0u);
  EXPECT_EQ(plan.ops[0].slab_offset, 8u);
  EXPECT_EQ(plan.ops[1].file_offset, 8u);
}

TEST(Ops, CopyTensorsOfManyDimensionsWhoseStridesMerge) {
  FakeSource source;
  source.Add("x", {2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 4});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(11)}), MeshOf({2}), 1);
  EXPECT_EQ(plan.ops.at(0).dims, 1u);
  EXPECT_EQ(source.Load(plan, "x").at(2), 6u);
}

TEST(Ops, RefuseMoreStridesThanTheyHold) {
  FakeSource source;
  source.Add("x", Shape(10, 3));
  Sharding sharding;
  sharding.boxes = {Box{Shape(10, 0), Shape(10, 2)}};
  const auto plan = PlanRank(source.index(), AskFor({"x"}, sharding, MeshOf({1})), {});
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_EQ(FactsOf(plan.status())["tensor"], "x");
}

TEST(Pieces, AreJoinedAcrossTheirBorders) {
  FakeSource source;
  source.AddInPieces("x", {4, 4}, {{{2, 0}, {2, 4}}, {{0, 0}, {2, 3}}, {{0, 3}, {2, 1}}});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(1)}), MeshOf({2}), 1);
  EXPECT_THAT(source.Load(plan, "x"), ElementsAre(2, 3, 6, 7, 10, 11, 14, 15));
}

TEST(Coverage, RefusesASourceThatLacksAPart) {
  FakeSource source;
  source.AddInPieces("x", {4}, {{{0}, {1}}, {{2}, {2}}});
  const auto plan = PlanRank(source.index(), AskFor({"x"}, Sharding{}, MeshOf({1})), {});
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
  EXPECT_EQ(FactsOf(plan.status())["tensor"], "x");
}

TEST(Coverage, RefusesASourceThatHoldsAPartTwice) {
  FakeSource source;
  source.AddInPieces("x", {4}, {{{0}, {2}}, {{1}, {2}}});
  EXPECT_THAT(PlanRank(source.index(), AskFor({"x"}, Sharding{}, MeshOf({1})), {}),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(Coverage, RefusesAPieceThatEndsBehindItsFile) {
  FakeSource source;
  source.Add("x", {4});
  source.index().files[0].bytes -= 1;
  EXPECT_THAT(PlanRank(source.index(), AskFor({"x"}, Sharding{}, MeshOf({1})), {}),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(Coverage, RefusesAPieceWhoseBytesDoNotFitItsBox) {
  FakeSource source;
  source.Add("x", {4});
  source.index().tensors[0].pieces[0].bytes = 8;
  EXPECT_THAT(PlanRank(source.index(), AskFor({"x"}, Sharding{}, MeshOf({1})), {}),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(HugeTensors, ArePlannedWithoutWrapping) {
  FakeSource source;
  source.Add("x", {0});
  const uint64_t rows = uint64_t{1} << 40;
  TensorEntry& tensor = source.index().tensors[0];
  tensor.dtype = Dtype::kU8;
  tensor.shape = {rows, 1u << 22};
  tensor.pieces = {Piece{0, 8, rows << 22, WholeOf(tensor.shape)}};
  source.index().files[0].bytes = (rows << 22) + 8;
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(1)}), MeshOf({2}), 1);
  EXPECT_EQ(plan.tensors[0].bytes, rows << 21);
  EXPECT_EQ(plan.ops.at(0).count[0], rows);
}

TEST(HugeTensors, AreRefusedWhenTheirBytesCannotBeCounted) {
  FakeSource source;
  source.Add("x", {0}, Dtype::kF16);
  TensorEntry& tensor = source.index().tensors[0];
  const uint64_t half = uint64_t{1} << 62;
  tensor.shape = {half};
  tensor.pieces = {Piece{0, 0, half * 2, WholeOf(tensor.shape)}};
  source.index().files[0].bytes = half * 2;
  RankLayout layout = AskFor({"x"}, Sharding{}, MeshOf({1}));
  EXPECT_OK(PlanRank(source.index(), layout, {}));
  layout.targets[0].dtype = Dtype::kF32;
  EXPECT_THAT(PlanRank(source.index(), layout, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

}  // namespace
}  // namespace ckptd
