#include "common/plan/flat_parameter.h"

#include <memory>

#include "common/base/reasons.h"
#include "common/plan/group_plan.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two ranks that hold a(2,3), three elements of padding, b(5).
class FlatParameters : public ::testing::Test {
 protected:
  FlatParameters() {
    source_.Add("b", {5});
    source_.AddInPieces("a", {2, 3}, {{{0, 2}, {2, 1}}, {{0, 0}, {2, 2}}});
    source_.Add("loose", {4});
    Sharding cut = OnMesh({ShardOf(0)});
    cut.padded_dim = 0;
    layout_ = AskFor({"a", "b", "loose"}, Sharding{}, MeshOf({2}));
    layout_.shardings.push_back(cut);
    layout_.flats = {{"flat", 1, 15}};
    layout_.targets[0].flat = {0, 0};
    layout_.targets[1].flat = {0, 9};
  }
  RankPlan PlanOf(uint32_t rank) {
    layout_.rank = rank;
    return Plan(source_, layout_);
  }
  absl::Status Refused() { return PlanRank(source_.index(), layout_, {}).status(); }

  FakeSource source_;
  RankLayout layout_;
};

TEST_F(FlatParameters, HoldTheirMembersOneBehindTheOther) {
  const RankPlan plan = PlanOf(0);
  EXPECT_EQ(source_.Load(plan, "a"), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_THAT(source_.Load(plan, "b"), IsEmpty());
  ASSERT_THAT(plan.flats, ElementsAre(PlannedFlat{"flat", Dtype::kU32, 0, 8}));
  EXPECT_THAT(plan.tensors[0].shape, ElementsAre(6));
  EXPECT_EQ(plan.tensors[0].offset, 0u);
  EXPECT_EQ(plan.tensors[2].offset, kSlabAlignment);
}

TEST_F(FlatParameters, BeginOnARankWithPaddingWhereItsRunDoes) {
  const RankPlan plan = PlanOf(1);
  EXPECT_THAT(source_.Load(plan, "a"), IsEmpty());
  EXPECT_THAT(source_.Load(plan, "b"), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(plan.tensors[1].offset, sizeof(uint32_t));
  EXPECT_EQ(plan.flats[0].elements, 8u);
}

TEST_F(FlatParameters, AreOneCohortOnAllRanks) {
  std::vector<std::shared_ptr<const RankLayout>> layouts;
  for (layout_.rank = 0; layout_.rank < 2; ++layout_.rank) {
    layouts.push_back(std::make_shared<const RankLayout>(layout_));
  }
  EXPECT_THAT(JoinEqual(layouts), SizeIs(1));
}

TEST_F(FlatParameters, LieInEveryWindowWhereTheWholePlanHasThem) {
  const RankPlan whole = PlanOf(1);
  const std::vector<Cohort> cohorts = {{std::make_shared<const RankLayout>(layout_), {1}}};
  ASSERT_OK_AND_ASSIGN(
      const GroupPlan group,
      GroupPlan::Make(std::make_shared<const CheckpointIndex>(source_.index()), cohorts, {}));
  EXPECT_EQ(group.Find(1)->digest, whole.digest);
  const PlannedRank* const rank = group.Find(1);
  size_t ops = 0;
  for (const PlanWindow& window : group.Windows({&rank, 1}, 1)) {
    const auto open = group.OpenWindow(window);
    ASSERT_OK_AND_ASSIGN(const RankPlan part, open.PlanOf(*rank));
    EXPECT_EQ(part.flats, whole.flats);
    for (size_t i = 0; i < part.tensors.size(); ++i) {
      EXPECT_EQ(part.tensors[i].offset, whole.tensors[open.NumbersOf(*rank)[i]].offset);
    }
    ops += part.ops.size();
  }
  EXPECT_EQ(ops, whole.ops.size());
}

TEST_F(FlatParameters, HaveAnotherDigestWhenAMemberMoves) {
  const uint64_t digest = PlanOf(1).digest;
  layout_.targets[1].flat->begin = 10;
  EXPECT_NE(PlanOf(1).digest, digest);
}

TEST_F(FlatParameters, MayHaveMembersWithoutElementsWhereOthersBegin) {
  source_.Add("z", {0});
  layout_.targets.push_back(layout_.targets[1]);
  layout_.targets.back().name = "z";
  EXPECT_THAT(PlanOf(0).flats, SizeIs(1));
}

TEST_F(FlatParameters, AreCastAsTheirMembersAre) {
  for (const char* name : {"x", "y"}) source_.Add(name, {6}, Dtype::kF32);
  layout_ = AskFor({"x", "y"}, Sharding{}, MeshOf({1}));
  layout_.flats = {{"flat", 0, 13}};
  layout_.targets[0].flat = {0, 7};
  layout_.targets[1].flat = {0, 0};
  auto plan = Plan(source_, layout_, {Dtype::kBF16, {}});
  EXPECT_EQ(plan.flats[0].dtype, Dtype::kBF16);
  EXPECT_EQ(plan.tensors[0].offset, 14u);
}

TEST_F(FlatParameters, LackNoMemberEvenWhereTensorsMayBeMissing) {
  layout_.skip_missing = true;
  layout_.targets[1].name = "c";
  EXPECT_THAT(Refused(), FailsWith(absl::StatusCode::kNotFound, reason::kTensorNotFound));
}

TEST_F(FlatParameters, AreNamedByTheirMembersWhereTheSourceHasNothing) {
  layout_.skip_missing = true;
  for (TargetSpec& target : layout_.targets) target.name = "other." + target.name;
  EXPECT_THAT(Refused(), Says("lacks 3"));
  EXPECT_THAT(Refused(), Says("other.a"));
}

TEST_F(FlatParameters, AreRefusedWhenTheyAreCutIntoMoreThanOneRun) {
  layout_.shardings[1] = OnMesh({StridedShardOf(0, 2)});
  EXPECT_THAT(Refused(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

TEST_F(FlatParameters, AreRefusedWhenTheirMembersDoNotFitIntoThem) {
  const RankLayout good = layout_;
  const auto refused = [&](const auto& bend) {
    layout_ = good;
    bend(layout_);
    return Refused();
  };
  const auto mismatch = FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch);
  EXPECT_THAT(refused([](RankLayout& l) { l.targets[1].flat->begin = 5; }), mismatch) << "overlap";
  EXPECT_THAT(refused([](RankLayout& l) { l.targets[1].flat->begin = 11; }), mismatch) << "end";
}

TEST_F(FlatParameters, AreRefusedWhenTheirMembersAreOfDifferentDtypes) {
  for (const char* name : {"x", "y"}) source_.Add(name, {6}, Dtype::kF32);
  layout_ = AskFor({"x", "y"}, Sharding{}, MeshOf({1}));
  layout_.flats = {{"flat", 0, 12}};
  layout_.targets[0].flat = {0, 0};
  layout_.targets[1].flat = {0, 6};
  ASSERT_OK(Refused());
  layout_.targets[1].dtype = Dtype::kBF16;
  EXPECT_THAT(Refused(), FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(std::string(Refused().message()), ::testing::HasSubstr("ask for one dtype"));
}

TEST_F(FlatParameters, AreRefusedWhenMalformed) {
  const RankLayout good = layout_;
  const auto refused = [&](const auto& bend) {
    layout_ = good;
    bend(layout_);
    return Refused();
  };
  const auto invalid = FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid);
  EXPECT_THAT(refused([](RankLayout& l) { l.flats[0].sharding = 2; }), invalid);
  EXPECT_THAT(refused([](RankLayout& l) { l.flats[0].name = "loose"; }), invalid);
  EXPECT_THAT(refused([](RankLayout& l) { l.flats.push_back({"empty", 0, 1}); }), invalid);
  EXPECT_THAT(refused([](RankLayout& l) { l.targets[0].flat->flat = 1; }), invalid);
  EXPECT_THAT(refused([](RankLayout& l) { l.targets[0].sharding = 1; }), invalid);
  EXPECT_THAT(refused([](RankLayout& l) { l.targets[0].optional = true; }), invalid);
}

}  // namespace
}  // namespace ckptd
