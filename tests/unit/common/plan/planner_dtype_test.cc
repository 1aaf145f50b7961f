#include "common/base/reasons.h"
#include "common/plan/plan.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

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

}  // namespace
}  // namespace ckptd
