#include <limits>

#include "common/base/reasons.h"
#include "common/layout/plan.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/common/layout/fake_source.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

RankPlan Plan(FakeSource& source, const RankLayout& layout, const DtypePolicy& policy = {}) {
  auto plan = PlanRank(source.index(), layout, policy);
  EXPECT_THAT(plan, IsOk());
  return plan.ok() ? *std::move(plan) : RankPlan{};
}

RankPlan PlanRow(FakeSource& source, const std::vector<std::string>& names,
                 const Sharding& sharding, const Mesh& mesh, uint32_t rank) {
  return Plan(source, AskFor(names, sharding, mesh, rank));
}

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

class Casts : public ::testing::Test {
 protected:
  Casts() {
    source_.Add("half", {6}, Dtype::kF16);
    source_.Add("full", {6}, Dtype::kF32);
    source_.Add("eight", {6}, Dtype::kF8E4M3);
    source_.Add("count", {6}, Dtype::kI64);
  }
  absl::StatusOr<RankPlan> PlanAs(const std::string& name, Dtype dtype, const DtypePolicy& policy) {
    RankLayout layout = AskFor({name}, OnMesh({ShardOf(0)}), MeshOf({2}), 1);
    layout.targets[0].dtype = dtype;
    return PlanRank(source_.index(), layout, policy);
  }
  Dtype DtypeOf(const std::string& name, Dtype dtype, const DtypePolicy& policy) {
    auto plan = PlanAs(name, dtype, policy);
    EXPECT_THAT(plan, IsOk());
    return plan.ok() ? plan->tensors.at(0).dtype : Dtype::kUnspecified;
  }
  FakeSource source_;
};

TEST_F(Casts, KeepTheDtypeOfTheFileWithoutAPolicy) {
  EXPECT_EQ(DtypeOf("half", Dtype::kUnspecified, {}), Dtype::kF16);
}

TEST_F(Casts, ApplyThePolicyToFloatingTensorsOnly) {
  const DtypePolicy policy{Dtype::kBF16, {}};
  EXPECT_EQ(DtypeOf("half", Dtype::kUnspecified, policy), Dtype::kBF16);
  EXPECT_EQ(DtypeOf("full", Dtype::kUnspecified, policy), Dtype::kBF16);
  EXPECT_EQ(DtypeOf("eight", Dtype::kUnspecified, policy), Dtype::kF8E4M3);
  EXPECT_EQ(DtypeOf("count", Dtype::kUnspecified, policy), Dtype::kI64);
}

TEST_F(Casts, KeepMatchingNamesInF32) {
  const DtypePolicy policy{Dtype::kBF16, {"ha*", "cou?t"}};
  EXPECT_EQ(DtypeOf("half", Dtype::kUnspecified, policy), Dtype::kF32);
  EXPECT_EQ(DtypeOf("full", Dtype::kUnspecified, policy), Dtype::kBF16);
  EXPECT_EQ(DtypeOf("count", Dtype::kUnspecified, policy), Dtype::kI64);
}

TEST_F(Casts, PreferTheDtypeThatTheTargetStates) {
  EXPECT_EQ(DtypeOf("half", Dtype::kF64, DtypePolicy{Dtype::kBF16, {"*"}}), Dtype::kF64);
}

TEST_F(Casts, AcceptTheDtypeThatATensorHasAnyway) {
  EXPECT_EQ(DtypeOf("count", Dtype::kI64, {}), Dtype::kI64);
}

TEST_F(Casts, AreRefusedForOtherTypes) {
  for (const auto& [name, dtype] : std::vector<std::pair<std::string, Dtype>>{
           {"count", Dtype::kF32}, {"half", Dtype::kI64}, {"eight", Dtype::kBF16}}) {
    const auto plan = PlanAs(name, dtype, {});
    EXPECT_THAT(plan, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
    EXPECT_THAT(plan, Says(name));
  }
}

TEST_F(Casts, AreRefusedForAPolicyWithoutCasts) {
  EXPECT_THAT(PlanAs("half", Dtype::kUnspecified, DtypePolicy{Dtype::kI8, {}}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

TEST_F(Casts, CountBytesOfBothSides) {
  ASSERT_OK_AND_ASSIGN(const RankPlan plan, PlanAs("half", Dtype::kF32, {}));
  const CopyOp& op = plan.ops.at(0);
  EXPECT_TRUE(op.casts());
  EXPECT_EQ(op.run_bytes, 6u);
  EXPECT_EQ(op.target_bytes(), 12u);
  EXPECT_EQ(plan.tensors[0].bytes, 12u);
}

TEST_F(Casts, StepThroughTheSlabInTheTargetsBytes) {
  source_.Add("wide", {4, 6}, Dtype::kF16);
  RankLayout layout = AskFor({"wide"}, OnMesh({ShardOf(1)}), MeshOf({2}), 1);
  layout.targets[0].dtype = Dtype::kF32;
  const RankPlan plan = Plan(source_, layout);
  EXPECT_EQ(plan.ops.at(0).file_stride[0], 12u);
  EXPECT_EQ(plan.ops.at(0).slab_stride[0], 12u);
  EXPECT_EQ(plan.ops.at(0).run_bytes, 6u);
}

TEST(SubByteTensors, AreCutBetweenBytes) {
  FakeSource source;
  source.Add("x", {4, 6}, Dtype::kF4);
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(0)}), MeshOf({2}), 1);
  EXPECT_EQ(plan.tensors[0].bytes, 6u);
  EXPECT_EQ(plan.ops.at(0).file_offset, 6u);
  EXPECT_EQ(plan.ops.at(0).run_bytes, 6u);
}

TEST(SubByteTensors, AreNotCutInsideAByte) {
  FakeSource source;
  source.Add("x", {4, 6}, Dtype::kF4);
  source.Add("row", {8}, Dtype::kF6E2M3);
  const auto columns =
      PlanRank(source.index(), AskFor({"x"}, OnMesh({ShardOf(1)}), MeshOf({2})), {});
  EXPECT_THAT(columns, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  const auto row =
      PlanRank(source.index(), AskFor({"row"}, OnMesh({ShardOf(0)}), MeshOf({4})), {});
  EXPECT_THAT(row, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

class TiedNames : public ::testing::Test {
 protected:
  TiedNames() {
    source_.Add("embed", {4, 2});
    source_.index().aliases["a.head"] = "embed";
    source_.index().aliases["z.head"] = "embed";
  }
  FakeSource source_;
};

TEST_F(TiedNames, ShareOneTensorUnderTheSourcesName) {
  const RankPlan plan =
      PlanRow(source_, {"a.head", "embed", "z.head"}, OnMesh({ShardOf(0)}), MeshOf({2}), 1);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "embed");
  EXPECT_THAT(plan.tensors[0].aliases, ElementsAre("a.head", "z.head"));
  EXPECT_THAT(source_.Load(plan, "embed"), ElementsAre(4, 5, 6, 7));
}

TEST_F(TiedNames, TakeTheFirstNameWhenTheSourcesOwnIsNotAskedFor) {
  const RankPlan plan = PlanRow(source_, {"a.head", "z.head"}, Sharding{}, MeshOf({1}), 0);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "a.head");
  EXPECT_THAT(plan.tensors[0].aliases, ElementsAre("z.head"));
}

TEST_F(TiedNames, ShareMemoryForEqualShardingsOfDifferentNumber) {
  RankLayout layout = AskFor({"a.head", "embed"}, OnMesh({ShardOf(0)}), MeshOf({2}), 1);
  layout.shardings.push_back(layout.shardings[0]);
  layout.targets[1].sharding = 1;
  EXPECT_THAT(Plan(source_, layout).tensors, SizeIs(1));
}

TEST_F(TiedNames, AreSeparateWhenTheyAreLaidOutDifferently) {
  RankLayout layout = AskFor({"a.head", "embed"}, OnMesh({ShardOf(0)}), MeshOf({2}), 1);
  layout.shardings.push_back(OnMesh({ShardOf(1)}));
  layout.targets[1].sharding = 1;
  const RankPlan plan = Plan(source_, layout);
  ASSERT_THAT(plan.tensors, SizeIs(2));
  EXPECT_THAT(source_.Load(plan, "a.head"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(source_.Load(plan, "embed"), ElementsAre(1, 3, 5, 7));
}

TEST_F(TiedNames, AreSeparateWhenTheirDtypesDiffer) {
  source_.Add("half", {2}, Dtype::kF16);
  source_.index().aliases["other"] = "half";
  RankLayout layout = AskFor({"half", "other"}, Sharding{}, MeshOf({1}));
  layout.targets[1].dtype = Dtype::kF32;
  EXPECT_THAT(Plan(source_, layout).tensors, SizeIs(2));
}

TEST_F(TiedNames, MayBeStatedByTheTrainerOnly) {
  RankLayout layout = AskFor({"tied.a"}, Sharding{}, MeshOf({1}));
  layout.targets[0].aliases = {"embed", "tied.c"};
  const RankPlan plan = Plan(source_, layout);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "embed");
  EXPECT_THAT(plan.tensors[0].aliases, ElementsAre("tied.a", "tied.c"));
}

TEST_F(TiedNames, MustNotStandForTensorsOfDifferentShape) {
  source_.Add("other", {8});
  RankLayout layout = AskFor({"embed"}, Sharding{}, MeshOf({1}));
  layout.targets[0].aliases = {"other"};
  EXPECT_THAT(PlanRank(source_.index(), layout, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

std::string MissingMessage(const std::vector<std::string>& have,
                           const std::vector<std::string>& ask) {
  FakeSource source;
  for (const std::string& name : have) source.Add(name, {1});
  const auto plan = PlanRank(source.index(), AskFor(ask, Sharding{}, MeshOf({1})), {});
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kNotFound, reason::kTensorNotFound));
  return MessageOf(plan.status());
}

TEST(MissingNames, AreCountedAndTheFirstFewNamed) {
  const std::string message =
      MissingMessage({"x"}, {"m0", "m1", "m2", "m3", "m4", "m5", "m6", "x"});
  EXPECT_THAT(message, HasSubstr("lacks 7 tensor(s)"));
  EXPECT_THAT(message, HasSubstr("'m0', 'm1', 'm2', 'm3', 'm4' and 2 more"));
}

TEST(MissingNames, ComeWithThePrefixThatTheSourceHas) {
  EXPECT_THAT(MissingMessage({"model.layers.0.w"}, {"layers.0.w"}),
              HasSubstr("'model.layers.0.w': add the prefix 'model.'"));
}

TEST(MissingNames, ComeWithThePrefixThatTheSourceLacks) {
  EXPECT_THAT(MissingMessage({"layers.0.w"}, {"module.model.layers.0.w"}),
              HasSubstr("remove the prefix 'module.model.'"));
}

TEST(MissingNames, ComeWithTheirNeighbours) {
  EXPECT_THAT(MissingMessage({"layers.0.q", "layers.0.v"}, {"layers.0.qq"}),
              HasSubstr("'layers.0.q' and 'layers.0.v'"));
  EXPECT_THAT(MissingMessage({}, {"w"}), HasSubstr("no tensors"));
}

TEST(RankForm, RefusesAShapeThatTheTrainerDoesNotExpect) {
  FakeSource source;
  source.Add("x", {4, 2});
  RankLayout layout = AskFor({"x"}, Sharding{}, MeshOf({1}));
  layout.targets[0].expected_shape = Shape{2, 4};
  const auto plan = PlanRank(source.index(), layout, {});
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(plan, Says("[4,2] in the source and [2,4] in the layout"));
}

TEST(RankForm, RefusesANameThatIsAskedForTwice) {
  FakeSource source;
  source.Add("x", {4});
  RankLayout layout = AskFor({"a", "x"}, Sharding{}, MeshOf({1}));
  layout.targets[0].aliases = {"x"};
  EXPECT_THAT(PlanRank(source.index(), layout, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

TEST(RankForm, RefusesAShardingThatDoesNotExist) {
  FakeSource source;
  source.Add("x", {4});
  RankLayout layout = AskFor({"x"}, Sharding{}, MeshOf({1}));
  layout.targets[0].sharding = 1;
  EXPECT_THAT(PlanRank(source.index(), layout, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

TEST(RankForm, RefusesARankOutsideOfTheWorld) {
  FakeSource source;
  EXPECT_THAT(PlanRank(source.index(), AskFor({}, Sharding{}, MeshOf({2}), 2), {}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kWrongRank));
}

TEST(RankForm, NeedNotBeSorted) {
  FakeSource source;
  for (const char* name : {"a", "b", "c"}) source.Add(name, {2});
  const RankPlan sorted = Plan(source, AskFor({"a", "b", "c"}, Sharding{}, MeshOf({1})));
  const RankPlan mixed = Plan(source, AskFor({"c", "a", "b"}, Sharding{}, MeshOf({1})));
  EXPECT_EQ(sorted.digest, mixed.digest);
}

TEST(Digest, IsEqualForEqualPlansAndDiffersForOthers) {
  FakeSource source;
  source.Add("x", {8});
  const auto digest = [&](uint32_t rank, const Sharding& sharding) {
    return PlanRow(source, {"x"}, sharding, MeshOf({2}), rank).digest;
  };
  EXPECT_EQ(digest(0, OnMesh({ShardOf(0)})), digest(0, OnMesh({ShardOf(0)})));
  EXPECT_NE(digest(0, OnMesh({ShardOf(0)})), digest(1, OnMesh({ShardOf(0)})));
  EXPECT_NE(digest(0, OnMesh({ShardOf(0)})), digest(0, Sharding{}));
}

TEST(Digest, NeverChangesForTheSamePlan) {
  FakeSource source;
  source.Add("x", {4, 6});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(1)}), MeshOf({2}), 1);
  EXPECT_EQ(HexDigest(plan.digest), "4188102ffed7c723");
}

TEST(Digest, OfAGroupDependsOnTheOrderOfItsRanks) {
  EXPECT_NE(CombineDigests({1, 2}), CombineDigests({2, 1}));
  EXPECT_EQ(CombineDigests({1, 2}), CombineDigests({1, 2}));
  EXPECT_NE(CombineDigests({}), CombineDigests({0}));
}

TEST(Digest, IsShownAsSixteenHexDigits) {
  EXPECT_EQ(HexDigest(0x0123456789abcdefu), "0123456789abcdef");
  EXPECT_EQ(HexDigest(0xab), "00000000000000ab");
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
