#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/layout/glob.h"
#include "common/layout/layout.h"
#include "common/layout/placement_text.h"
#include "common/layout/rules_parser.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Glob, MatchesAnyCharactersWithAStar) {
  EXPECT_TRUE(MatchesGlob("model.layers.*.weight", "model.layers.0.mlp.up.weight"));
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_TRUE(MatchesGlob("a*b*c", "a-b-b-c"));
  EXPECT_FALSE(MatchesGlob("model.layers.*.weight", "model.layers.0.mlp.up.bias"));
  EXPECT_FALSE(MatchesGlob("a*b", "ab-"));
}

TEST(Glob, MatchesExactlyOneCharacterWithAQuestionMark) {
  EXPECT_TRUE(MatchesGlob("layers.?.w", "layers.3.w"));
  EXPECT_FALSE(MatchesGlob("layers.?.w", "layers.12.w"));
  EXPECT_FALSE(MatchesGlob("a?", "a"));
}

TEST(Glob, DescribesTheWholeName) {
  EXPECT_FALSE(MatchesGlob("weight", "weight.x"));
  EXPECT_FALSE(MatchesGlob("weight", "x.weight"));
  EXPECT_FALSE(MatchesGlob("", "x"));
  EXPECT_TRUE(MatchesGlob("[a]", "[a]"));
}

TEST(PlacementText, ReadsBackWhatItWrites) {
  for (const Placement& placement :
       {Replicate(), ShardOf(0), ShardOf(-2), StridedShardOf(1, 4), StridedShardOf(-1, 2)}) {
    EXPECT_EQ(ParsePlacement(ToText(placement)), placement) << ToText(placement);
  }
}

TEST(PlacementText, RefusesAnythingElse) {
  for (const char* text : {"", "Shard(0)", "shard", "shard()", "shard(0", "shard(0)x", "shard(1.5)",
                           "shard(99999999999)", "strided_shard(0)", "strided_shard(0,0)",
                           "strided_shard(0,2,3)", "partial", "shard(0,1)"}) {
    EXPECT_EQ(ParsePlacement(text), std::nullopt) << text;
  }
}

LayoutRules Rules(const std::string& text) {
  auto rules = LayoutRules::Parse(text);
  EXPECT_THAT(rules, IsOk());
  return rules.ok() ? *std::move(rules) : LayoutRules{};
}

RankLayout For(const LayoutRules& rules, FakeSource& source, uint32_t rank) {
  auto layout = rules.ForRank(source.index(), rank);
  EXPECT_THAT(layout, IsOk());
  return layout.ok() ? *std::move(layout) : RankLayout{};
}

Sharding ShardingOf(const RankLayout& layout, const std::string& name) {
  for (const TargetSpec& target : layout.targets) {
    if (target.name == name) return layout.shardings[target.sharding];
  }
  ADD_FAILURE() << name << " is not in the layout";
  return {};
}

std::vector<std::string> NamesOf(const RankLayout& layout) {
  std::vector<std::string> names;
  for (const TargetSpec& target : layout.targets) names.push_back(target.name);
  return names;
}

TEST(ShortLayout, FsdpShardsRowsWithPadding) {
  FakeSource source;
  source.Add("w", {4, 2});
  const LayoutRules rules = Rules("fsdp:4");
  EXPECT_EQ(rules.world_size(), 4u);
  EXPECT_EQ(rules.description(), "fsdp:4");
  const RankLayout layout = For(rules, source, 1);
  Sharding expected = OnMesh({ShardOf(0)});
  expected.padded_dim = 0;
  EXPECT_EQ(ShardingOf(layout, "w"), expected);
  EXPECT_THAT(layout.meshes, ElementsAre(MeshOf({4})));
}

TEST(ShortLayout, FsdpGivesScalarsWhole) {
  FakeSource source;
  source.Add("step", {});
  EXPECT_EQ(ShardingOf(For(Rules("fsdp:2"), source, 1), "step"), Sharding{});
}

TEST(ShortLayout, HsdpReplicatesOverTheFirstNumber) {
  FakeSource source;
  source.Add("w", {4});
  const LayoutRules rules = Rules("hsdp:2x3");
  EXPECT_EQ(rules.world_size(), 6u);
  const RankLayout layout = For(rules, source, 5);
  EXPECT_THAT(ShardingOf(layout, "w").placements, ElementsAre(Replicate(), ShardOf(0)));
  EXPECT_THAT(layout.meshes, ElementsAre(MeshOf({2, 3})));
}

TEST(ShortLayout, ReplicateGivesEveryTensorWhole) {
  FakeSource source;
  source.Add("w", {4});
  const LayoutRules rules = Rules("replicate:3");
  EXPECT_EQ(rules.world_size(), 3u);
  EXPECT_EQ(ShardingOf(For(rules, source, 2), "w"), Sharding{});
}

void ExpectInvalid(const std::string& text, const std::string& says) {
  const auto rules = LayoutRules::Parse(text);
  EXPECT_THAT(rules, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid)) << text;
  EXPECT_THAT(rules, Says(says)) << text;
}

TEST(LayoutText, RefusesTextAboveItsLimitBeforeItLooksAtIt) {
  const std::string most(kMaxLayoutTextBytes - 11, ' ');
  EXPECT_OK(LayoutRules::Parse(most + "replicate:1"));
  ExpectInvalid(most + " replicate:1", "at most 4194304 are read");
}

TEST(ShortLayout, IsRefusedWhenItIsNoneOfTheThree) {
  for (const char* text : {"", "fsdp", "fsdp:", "fsdp:x", "fsdp:-1", "fsdp:2x2", "hsdp:4", "tp:2",
                           "hsdp:2x2x2", "FSDP:2", "[]", "fsdp: 2"}) {
    ExpectInvalid(text, "use fsdp:N, hsdp:RxS, replicate:N");
  }
}

TEST(ShortLayout, IsRefusedWithoutRanksOrWithTooMany) {
  ExpectInvalid("fsdp:0", "1 to 1048576");
  ExpectInvalid("fsdp:1048577", "1 to 1048576");
  ExpectInvalid("hsdp:4294967295x4294967295", "1 to 1048576");
  EXPECT_OK(LayoutRules::Parse("fsdp:1048576"));
}

constexpr char kTwoMeshes[] = R"j({
  "world_size": 8,
  "meshes": {"dense": {"shape": [2, 2], "dim_names": ["dp", "tp"]},
             "expert": {"shape": [4], "ranks": [3, 2, 1, 0]}},
  "rules": [
    {"match": ["*.experts.*"], "mesh": "expert", "placements": ["shard(0)"]},
    {"match": "head.*", "only_ranks": [7, 5], "dtype": "F32"},
    {"match": ["skip.*", "skipped"], "drop": true},
    {"match": ["*.weight"], "mesh": "dense", "placements": ["strided_shard(0,2)", "shard(0)"],
     "padded": true}],
  "default": {}})j";

FakeSource TwoMeshSource() {
  FakeSource source;
  for (const char* name : {"a.weight", "b.experts.0", "buffer", "head.w", "skip.x", "skipped"}) {
    source.Add(name, {8, 2}, Dtype::kF16);
  }
  return source;
}

TEST(JsonLayout, GivesEachTensorByTheFirstRuleThatMatches) {
  FakeSource source = TwoMeshSource();
  const RankLayout layout = For(Rules(kTwoMeshes), source, 3);
  EXPECT_THAT(NamesOf(layout), ElementsAre("a.weight", "b.experts.0", "buffer"));
  const Sharding dense = ShardingOf(layout, "a.weight");
  EXPECT_EQ(dense.mesh, 0u);
  EXPECT_THAT(dense.placements, ElementsAre(StridedShardOf(0, 2), ShardOf(0)));
  EXPECT_EQ(dense.padded_dim, 0);
  EXPECT_EQ(ShardingOf(layout, "b.experts.0").mesh, 1u);
  EXPECT_EQ(ShardingOf(layout, "buffer"), Sharding{});
}

TEST(JsonLayout, GivesTensorsToTheListedRanksOnly) {
  FakeSource source = TwoMeshSource();
  const RankLayout layout = For(Rules(kTwoMeshes), source, 5);
  EXPECT_THAT(NamesOf(layout), ElementsAre("buffer", "head.w"));
  EXPECT_EQ(layout.targets[1].dtype, Dtype::kF32);
}

TEST(JsonLayout, TakesTheWorldSizeFromItsMeshes) {
  EXPECT_EQ(Rules(R"j({"mesh": {"shape": [2, 3]}, "default": {}})j").world_size(), 6u);
  EXPECT_EQ(Rules(R"j({"mesh": {"shape": [2], "ranks": [4, 9]}, "default": {}})j").world_size(),
            10u);
}

TEST(JsonLayout, DescribesItsMeshes) {
  EXPECT_EQ(Rules(R"j({"mesh": {"shape": [2, 4]}, "default": {}})j").description(),
            "rules over mesh 2x4");
  EXPECT_EQ(Rules(kTwoMeshes).description(), "rules over meshes dense 2x2, expert 4");
}

TEST(JsonLayout, NamesATensorThatNoRuleMatches) {
  FakeSource source;
  source.Add("odd.one", {2});
  const LayoutRules rules = Rules(R"j({"world_size": 1, "rules": [{"match": "even.*"}]})j");
  const auto layout = rules.ForRank(source.index(), 0);
  EXPECT_THAT(layout, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(layout, Says("odd.one"));
}

TEST(JsonLayout, AppliesRulesToAliasesByTheirOwnName) {
  FakeSource source;
  source.Add("embed.weight", {4, 2});
  source.index().aliases["a.head.weight"] = "embed.weight";
  source.index().aliases["z.head.weight"] = "embed.weight";
  const LayoutRules rules = Rules(
      R"j({"world_size": 2, "rules": [{"match": "z.*", "only_ranks": [1]}], "default": {}})j");
  const RankLayout first = For(rules, source, 0);
  ASSERT_THAT(NamesOf(first), ElementsAre("a.head.weight"));
  EXPECT_THAT(first.targets[0].aliases, ElementsAre("embed.weight"));
  // Another rule with the same placement: still one tensor with three names.
  const RankLayout second = For(rules, source, 1);
  ASSERT_THAT(NamesOf(second), ElementsAre("a.head.weight"));
  EXPECT_THAT(second.targets[0].aliases, ElementsAre("embed.weight", "z.head.weight"));
}

TEST(JsonLayout, CastsFloatingTensorsOnly) {
  FakeSource source;
  source.Add("steps", {1}, Dtype::kI64);
  source.Add("weight", {2}, Dtype::kF32);
  const LayoutRules rules = Rules(R"j({"world_size": 1, "default": {"dtype": "BF16"}})j");
  const RankLayout layout = For(rules, source, 0);
  EXPECT_EQ(layout.targets[0].dtype, Dtype::kUnspecified);
  EXPECT_EQ(layout.targets[1].dtype, Dtype::kBF16);
}

TEST(JsonLayout, RefusesARankOutsideOfTheWorld) {
  FakeSource source;
  EXPECT_THAT(Rules("fsdp:2").ForRank(source.index(), 2),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kWrongRank));
}

TEST(JsonLayout, NamesUnknownKeysAndWhatIsAllowed) {
  ExpectInvalid(R"j({"mesh": {"shape": [2]}, "rulez": []})j",
                "unknown key \"rulez\"; allowed are description, world_size, mesh, meshes, rules, "
                "default");
  ExpectInvalid(R"j({"mesh": {"shape": [2], "names": []}})j", "\"mesh\" has the unknown key");
  ExpectInvalid(R"j({"world_size": 1, "rules": [{"match": "*"}, {"pattern": "*"}]})j",
                "\"rules[1]\" has the unknown key \"pattern\"");
  ExpectInvalid(R"j({"world_size": 1, "default": {"match": "*"}})j",
                "\"default\" has the unknown key \"match\"");
}

TEST(JsonLayout, RefusesAKeyThatOccursTwice) {
  ExpectInvalid(R"j({"world_size": 1, "world_size": 2, "default": {}})j", "\"world_size\" twice");
}

TEST(JsonLayout, NamesTheKeyOfAWrongType) {
  ExpectInvalid(R"j({"world_size": "2", "default": {}})j", "\"world_size\" must be a whole number");
  ExpectInvalid(R"j({"mesh": {"shape": ["2"]}})j",
                "\"mesh.shape\" must be a list of whole numbers");
  ExpectInvalid(R"j({"mesh": {"shape": [2.5]}})j", "\"2.5\" at byte 20 is no whole number");
  ExpectInvalid(R"j({"mesh": {"shape": [-2]}})j", "\"-2\" at byte 20 is no whole number");
  ExpectInvalid(R"j({"mesh": [2]})j", "\"mesh\" must be an object");
  ExpectInvalid(R"j({"mesh": {"shape": [2]}, "rules": {}})j", "\"rules\" must be a list");
  ExpectInvalid(R"j({"world_size": 1, "rules": [{"match": 3}]})j", "\"rules[0].match\" must be");
  ExpectInvalid(R"j({"world_size": 1, "default": {"drop": 1}})j", "\"default.drop\" must be true");
}

TEST(JsonLayout, RefusesMeshesThatCannotBe) {
  ExpectInvalid(R"j({"mesh": {"shape": []}})j", "1 to 8 dimensions");
  ExpectInvalid(R"j({"mesh": {"shape": [2, 0]}})j", "must hold 1 to");
  ExpectInvalid(R"j({"mesh": {"shape": [4294967295, 4294967295, 4294967295]}})j", "must hold 1 to");
  ExpectInvalid(R"j({"mesh": {"shape": [2], "ranks": [0]}})j", "needs 2 ranks but lists 1");
  ExpectInvalid(R"j({"mesh": {"shape": [2], "ranks": [1, 1]}})j", "lists rank 1 twice");
  ExpectInvalid(R"j({"mesh": {"shape": [1], "ranks": [4294967295]}, "default": {}})j", "more than");
  ExpectInvalid(R"j({"mesh": {"shape": [2], "dim_names": ["a", "b"]}})j", "2 dim_names");
  ExpectInvalid(R"j({"mesh": {"shape": [2]}, "meshes": {}, "default": {}})j", "use \"meshes\"");
  ExpectInvalid(R"j({"meshes": {}})j", "1 to 64 named meshes");
}

TEST(JsonLayout, RefusesRulesThatContradictThemselves) {
  const auto with = [](const std::string& rule) {
    return R"j({"mesh": {"shape": [2]}, "default": )j" + rule + "}";
  };
  ExpectInvalid(with(R"j({"placements": ["shard"]})j"), "unknown placement \"shard\"; allowed");
  ExpectInvalid(with(R"j({"placements": ["shard(0)", "replicate"]})j"), "one per mesh dimension");
  ExpectInvalid(with(R"j({"padded": true})j"), "without \"placements\"");
  ExpectInvalid(with(R"j({"placements": ["replicate"], "padded": true})j"), "no placement shards");
  ExpectInvalid(with(R"j({"drop": true, "dtype": "F32"})j"), "drops its tensors");
  ExpectInvalid(with(R"j({"only_ranks": []})j"), "ranks from 0 to 1");
  ExpectInvalid(with(R"j({"only_ranks": [2]})j"), "ranks from 0 to 1");
  ExpectInvalid(with(R"j({"dtype": "FLOAT"})j"), "unknown dtype \"FLOAT\"");
  ExpectInvalid(with(R"j({"mesh": "x", "placements": ["shard(0)"]})j"), "name of a mesh");
}

TEST(JsonLayout, RefusesToSayNothing) {
  ExpectInvalid("{}", "does not say which ranks");
  ExpectInvalid(R"j({"world_size": 2})j", "neither \"rules\" nor \"default\"");
  ExpectInvalid(R"j({"world_size": 1, "mesh": {"shape": [2]}, "default": {}})j", "holds rank 1");
  ExpectInvalid(R"j({"world_size": 1, "rules": [{"drop": true}]})j", "lacks the key \"match\"");
  ExpectInvalid(R"j({"world_size": 1, "rules": [{"match": []}]})j", "at least one pattern");
}

TEST(JsonLayout, BoundsTheNamesThatItKeeps) {
  const std::string name(1025, 'a');
  ExpectInvalid(fmt::format(R"j({{"world_size": 1, "rules": [{{"match": "{}"}}]}})j", name),
                "at most 1024");
  ExpectInvalid(fmt::format(R"j({{"meshes": {{"{}": {{"shape": [1]}}}}}})j", name),
                "name of 1025 bytes");
}

TEST(JsonLayout, SaysWhereTheTextIsNotJson) {
  ExpectInvalid(R"j({"world_size": 1,})j", "not valid JSON at byte");
  ExpectInvalid(R"j({"world_size": 1} x)j", "not valid JSON at byte");
}

TEST(JsonLayout, SurvivesTextsThatNestWithoutEnd) {
  std::string text = R"j({"rules": )j";
  text.append(1'000'000, '[');
  ExpectInvalid(text, "not valid JSON");
  std::string closed = R"j({"description": )j" + std::string(500'000, '[') +
                       std::string(500'000, ']') + "}";
  ExpectInvalid(closed, "\"description\" must be a string");
}

TEST(JsonLayout, RefusesTextsThatAreTooLong) {
  ExpectInvalid(std::string((size_t{4} << 20) + 1, ' '), "at most 4194304");
}

TEST(ExampleLayout, IsAccepted) {
  const std::string path = std::string(CKPTD_SOURCE_DIR) + "/deploy/config/layout.example.json";
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadSmallFile(path, size_t{1} << 20));
  EXPECT_OK(LayoutRules::Parse(text));
  for (const char* key : {"description", "world_size", "meshes", "shape", "dim_names", "ranks",
                          "rules", "match", "mesh", "placements", "padded", "dtype", "only_ranks",
                          "drop", "default", "replicate", "shard(", "strided_shard("}) {
    EXPECT_THAT(text, HasSubstr(key));
  }
}

}  // namespace
}  // namespace ckptd
