#include "common/base/reasons.h"
#include "common/plan/plan.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TiedNames : public ::testing::Test {
 protected:
  TiedNames() {
    source_.Add("embed", {4, 2});
    source_.index().aliases["a.head"] = "embed";
    source_.index().aliases["z.head"] = "embed";
  }
  FakeSource source_;
};

// Rule form: the layout of a rank as the rules make it.
RankPlan PlanRules(FakeSource& source, const std::string& rules, uint32_t rank) {
  const auto parsed = LayoutRules::Parse(rules);
  EXPECT_OK(parsed);
  const auto layout = parsed->ForRank(source.index(), rank);
  EXPECT_OK(layout);
  return Plan(source, *layout);
}

TEST_F(TiedNames, ShareOneTensorUnderTheSourcesNameByRule) {
  const RankPlan plan = PlanRules(source_, "fsdp:2", 1);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "embed");
  EXPECT_THAT(plan.tensors[0].aliases, ElementsAre("a.head", "z.head"));
  EXPECT_THAT(source_.Load(plan, "embed"), ElementsAre(4, 5, 6, 7));
}

TEST_F(TiedNames, TakeTheFirstNameWhenTheRulesDropTheSourcesOwn) {
  const RankPlan plan = PlanRules(
      source_, R"j({"mesh": {"shape": [1]}, "rules": [{"match": "embed", "drop": true}],
                   "default": {}})j",
      0);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "a.head");
  EXPECT_THAT(plan.tensors[0].aliases, ElementsAre("z.head"));
}

TEST_F(TiedNames, AreSeparateWhenTheRulesLayThemOutDifferently) {
  const RankPlan plan = PlanRules(
      source_, R"j({"mesh": {"shape": [2]},
                   "rules": [{"match": "embed", "placements": ["shard(1)"]}],
                   "default": {"placements": ["shard(0)"]}})j",
      1);
  ASSERT_THAT(plan.tensors, SizeIs(2));
  EXPECT_THAT(plan.tensors[0].aliases, ElementsAre("z.head"));
  EXPECT_THAT(source_.Load(plan, "a.head"), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(source_.Load(plan, "embed"), ElementsAre(1, 3, 5, 7));
}

TEST_F(TiedNames, NeverShareMemoryWhenTheTrainerStatesThemSeparately) {
  // It would train two weights as one.
  const RankPlan plan = Plan(source_, AskFor({"a.head", "embed"}, Sharding{}, MeshOf({1})));
  ASSERT_THAT(plan.tensors, SizeIs(2));
  EXPECT_NE(plan.tensors[0].offset, plan.tensors[1].offset);
  EXPECT_EQ(source_.Load(plan, "a.head"), source_.Load(plan, "embed"));
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

TEST(RankForm, LeavesOutWhatIsMissingWhenAllowed) {
  FakeSource source;
  source.Add("x", {4});
  RankLayout layout = AskFor({"gone", "x"}, Sharding{}, MeshOf({1}));
  layout.skip_missing = true;
  const RankPlan plan = Plan(source, layout);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "x");
}

TEST(RankForm, RefusesToLeaveOutEverything) {
  FakeSource source;
  source.Add("model.x", {4});
  RankLayout layout = AskFor({"x"}, Sharding{}, MeshOf({1}));
  layout.skip_missing = true;
  const auto plan = PlanRank(source.index(), layout, {});
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kNotFound, reason::kTensorNotFound));
  EXPECT_THAT(plan, Says("add the prefix 'model.'"));
}

TEST(RankForm, LeavesOutOptionalTensorsThatAreMissingOrOfAnotherShape) {
  FakeSource source;
  source.Add("other", {4});
  source.Add("x", {4});
  RankLayout layout = AskFor({"gone", "other", "x"}, Sharding{}, MeshOf({1}));
  for (TargetSpec& target : layout.targets) target.expected_shape = Shape{4};
  layout.targets[1].expected_shape = Shape{2, 2};
  layout.targets[0].optional = layout.targets[1].optional = layout.targets[2].optional = true;
  const RankPlan plan = Plan(source, layout);
  ASSERT_THAT(plan.tensors, SizeIs(1));
  EXPECT_EQ(plan.tensors[0].name, "x");
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

TEST(RankForm, TakesANumberInShapeOneForOneWithoutDimensionsAndNotTheReverse) {
  const auto plan = [](const Shape& source_shape, const Shape& expected) {
    FakeSource source;
    source.Add("x", source_shape);
    RankLayout layout = AskFor({"x"}, Sharding{}, MeshOf({1}));
    layout.targets[0].expected_shape = expected;
    return PlanRank(source.index(), layout, {});
  };
  EXPECT_OK(plan({1}, {}));
  for (const auto& [source_shape, expected] :
       {std::pair<Shape, Shape>{{}, {1}}, {{2}, {}}, {{1, 1}, {}}, {{1}, {1, 1}}, {{0}, {}}}) {
    EXPECT_THAT(plan(source_shape, expected),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  }
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

}  // namespace
}  // namespace ckptd
