#include "common/plan/plan_match.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kRanks = 4;

// Rows that do not divide evenly, fewer rows than ranks, columns, and a scalar.
FakeSource Model() {
  FakeSource source;
  source.Add("embed", {10, 6});
  source.Add("head", {10, 6});
  source.Add("bias", {3});
  source.Add("scale", {});
  source.Add("w", {8, 8}, Dtype::kF32);
  return source;
}

Box Rows(uint64_t begin, uint64_t end, uint64_t columns) {
  return {{begin, 0}, {end - begin, columns}};
}

class PlanMatchTest : public ::testing::Test {
 protected:
  // What a rule gives every rank.
  RankPlan Ruled(const std::string& rules, uint32_t rank, const DtypePolicy& policy = {}) {
    const auto parsed = LayoutRules::Parse(rules);
    EXPECT_THAT(parsed, IsOk());
    const auto layout = parsed->ForRank(source_.index(), rank);
    EXPECT_THAT(layout, IsOk());
    return Plan(source_, *layout, policy);
  }
  // As a trainer states FSDP2's parameters.
  static RankLayout Stated(uint32_t rank) {
    RankLayout layout = AskFor({"bias", "embed", "head", "scale", "w"}, OnMesh({ShardOf(0)}),
                               MeshOf({kRanks}), rank);
    layout.shardings[0].padded_dim = 0;
    layout.shardings.emplace_back();
    layout.targets[3].sharding = 1;  // a scalar is never cut
    return layout;
  }
  static TargetSpec& Target(RankLayout& layout, const std::string& name) {
    return *std::find_if(layout.targets.begin(), layout.targets.end(),
                         [&](const TargetSpec& target) { return target.name == name; });
  }

  FakeSource source_ = Model();
};

struct CanonicalHasher {
  const char* what;
  std::function<void(RankLayout&)> spell;
};

TEST_F(PlanMatchTest, OneThingSpelledOtherwiseIsTheSame) {
  const std::vector<CanonicalHasher> spellings = {
      {"as FSDP2 does", [](RankLayout&) {}},
      {"a mesh of two dimensions, one of size 1", [](RankLayout& layout) {
         layout.meshes = {MeshOf({kRanks, 1})};
         layout.shardings[0].placements = {ShardOf(0), Replicate()};
       }},
      {"the dimension counted from the end", [](RankLayout& layout) {
         layout.shardings.push_back(layout.shardings[0]);
         layout.shardings.back().placements = {ShardOf(-2)};
         for (const char* name : {"embed", "head", "w"}) Target(layout, name).sharding = 2;
       }},
      {"without the padding", [](RankLayout& layout) { layout.shardings[0].padded_dim.reset(); }},
      {"the dtype that the file has", [](RankLayout& layout) { Target(layout, "w").dtype = Dtype::kF32; }},
      {"the shape that it has", [](RankLayout& layout) { Target(layout, "w").expected_shape = {8, 8}; }},
      {"unused meshes and shardings", [](RankLayout& layout) {
         layout.meshes.push_back(MeshOf({2, 2}));
         layout.shardings.emplace_back();
       }},
      {"boxes", [](RankLayout& layout) {
         layout.shardings.emplace_back().boxes = {Rows(2 * layout.rank, 2 * layout.rank + 2, 8)};
         Target(layout, "w").sharding = 2;
       }},
      {"boxes of one row each", [](RankLayout& layout) {
         const uint64_t first = 2 * layout.rank;
         layout.shardings.emplace_back().boxes = {Rows(first, first + 1, 8), Rows(first + 1, first + 2, 8)};
         Target(layout, "w").sharding = 2;
       }},
      {"a further name that the source lacks", [](RankLayout& layout) {
         Target(layout, "w").aliases = {"a.tied.name"};
       }},
      {"the name in the source as the further one", [](RankLayout& layout) {
         Target(layout, "w").aliases = {"w"};
         Target(layout, "w").name = "z";
       }},
      {"two of its tensors tied", [](RankLayout& layout) {
         layout.targets.erase(layout.targets.begin() + 2);
         Target(layout, "embed").aliases = {"head"};
       }},
      {"some of the tensors", [](RankLayout& layout) { layout.targets.resize(2); }},
      {"an optional one that is missing", [](RankLayout& layout) {
         layout.targets.emplace_back().name = "zz";
         layout.targets.back().optional = true;
       }},
  };
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    const RankPlan resident = Ruled("fsdp:4", rank);
    for (const auto& [what, spell] : spellings) {
      RankLayout layout = Stated(rank);
      spell(layout);
      const RankPlan wanted = Plan(source_, layout);
      const PlanMatch match = MatchPlans(resident, wanted);
      EXPECT_THAT(match.differs, IsEmpty()) << what << ", rank " << rank;
      ASSERT_EQ(match.resident.size(), wanted.tensors.size()) << what;
      for (size_t i = 0; i < wanted.tensors.size(); ++i) {
        const std::string& name = wanted.tensors[i].name;
        const PlannedTensor& there = resident.tensors[match.resident[i]];
        EXPECT_EQ(source_.Load(resident, there.name), source_.Load(wanted, name)) << what << ", " << name;
        EXPECT_LE(wanted.tensors[i].padded_bytes, there.padded_bytes) << what << ", " << name;
      }
    }
  }
}

struct Difference {
  const char* sentence;
  std::function<void(RankLayout&)> change;
};

TEST_F(PlanMatchTest, OneThingThatDiffersIsNamed) {
  const std::vector<Difference> differences = {
      {"tensor 'w' is F32 there and asked for as BF16",
       [](RankLayout& layout) { Target(layout, "w").dtype = Dtype::kBF16; }},
      {"of tensor 'w' this rank has a part of shape [2,8] there and asks for [8,8]",
       [](RankLayout& layout) { Target(layout, "w").sharding = 1; }},
      {"of tensor 'w' this rank has another part there",  // of as many bytes
       [](RankLayout& layout) {
         layout.shardings.push_back(OnMesh({ShardOf(1)}));
         Target(layout, "w").sharding = 2;
       }},
      {"of tensor 'w' this rank has another part there",  // other rows
       [](RankLayout& layout) {
         layout.meshes[0].ranks = {3, 2, 1, 0};
         layout.targets.erase(layout.targets.begin(), layout.targets.begin() + 4);
       }},
      {"of tensor 'w' this rank has another part there",  // the rows in another order
       [](RankLayout& layout) {
         layout.shardings.emplace_back().boxes = {Rows(1, 2, 8), Rows(0, 1, 8)};
         Target(layout, "w").sharding = 2;
       }},
  };
  for (const auto& [sentence, change] : differences) {
    RankLayout layout = Stated(0);
    change(layout);
    EXPECT_THAT(MatchPlans(Ruled("fsdp:4", 0), Plan(source_, layout)).differs, HasSubstr(sentence));
  }
}

TEST_F(PlanMatchTest, WhatTheResidentOneLeftOutIsNamed) {
  const std::string rules = R"json({"mesh": {"shape": [4]}, "rules": [
      {"match": "head", "drop": true}], "default": {"placements": ["shard(0)"], "padded": true}})json";
  EXPECT_THAT(MatchPlans(Ruled(rules, 0), Plan(source_, Stated(0))).differs,
              HasSubstr("tensor 'head' is not in it"));
}

TEST_F(PlanMatchTest, PaddingThatIsNotThereIsMissed) {
  const std::string rules = R"json({"mesh": {"shape": [4]}, "default": {"placements": ["shard(0)"]}})json";
  EXPECT_THAT(MatchPlans(Ruled(rules, 3), Plan(source_, Stated(3))).differs,
              HasSubstr("tensor 'bias' has 0 bytes with padding there and is asked for with 4"));
}

TEST_F(PlanMatchTest, ACastIsTheSameByPolicyAndByTensor) {
  DtypePolicy policy;
  policy.cast_to = Dtype::kBF16;
  RankLayout layout = Stated(1);
  Target(layout, "w").dtype = Dtype::kBF16;
  EXPECT_THAT(MatchPlans(Ruled("fsdp:4", 1, policy), Plan(source_, layout)).differs, IsEmpty());
}

TEST_F(PlanMatchTest, AReplicaIsAWholeTensorAndAMeshOfReplicasIsFsdp) {
  const RankLayout whole = AskFor({"embed", "w"}, Sharding{}, MeshOf({kRanks}), 2);
  EXPECT_THAT(MatchPlans(Ruled("replicate:4", 2), Plan(source_, whole)).differs, IsEmpty());
  RankLayout sharded = Stated(3);
  sharded.meshes[0] = MeshOf({2});
  sharded.meshes[0].ranks = {2, 3};
  EXPECT_THAT(MatchPlans(Ruled("hsdp:2x2", 3), Plan(source_, sharded)).differs, IsEmpty());
}

TEST_F(PlanMatchTest, OneTensorServesOneTarget) {
  // Tied there, and asked for apart: memory of its own for each.
  source_.index().aliases = {{"head2", "head"}};
  RankLayout layout = AskFor({"head", "head2"}, OnMesh({ShardOf(0)}), MeshOf({kRanks}));
  EXPECT_THAT(MatchPlans(Ruled("fsdp:4", 0), Plan(source_, layout)).differs,
              HasSubstr("shares its memory"));
}

TEST_F(PlanMatchTest, AnyOfItsNamesFindsATensor) {
  source_.index().aliases = {{"head2", "head"}};
  RankLayout layout = AskFor({"a.tied.name"}, OnMesh({ShardOf(0)}), MeshOf({kRanks}));
  layout.targets[0].aliases = {"head2"};
  EXPECT_THAT(MatchPlans(Ruled("fsdp:4", 0), Plan(source_, layout)).differs, IsEmpty());
}

TEST_F(PlanMatchTest, FlatParametersAreNoRowsEvenWhereTheBytesAgree) {
  RankLayout layout = AskFor({"w"}, Sharding{}, MeshOf({kRanks}));
  layout.shardings.push_back(OnMesh({ShardOf(0)}));
  layout.flats = {{"_flat_param", 1, 64}};
  layout.targets[0].flat = FlatPlace{0, 0};
  const RankPlan flat = Plan(source_, layout);
  ASSERT_EQ(flat.tensors[0].bytes, 64u);  // as many as its rows
  EXPECT_THAT(MatchPlans(Ruled("fsdp:4", 0), flat).differs,
              HasSubstr("flat parameters of FSDP1 are asked for and not there"));
  EXPECT_THAT(MatchPlans(flat, flat).differs, IsEmpty());
  RankLayout rows = AskFor({"w"}, OnMesh({ShardOf(0)}), MeshOf({kRanks}));
  EXPECT_THAT(MatchPlans(flat, Plan(source_, rows)).differs, HasSubstr("there and not asked for"));
}

TEST_F(PlanMatchTest, ColumnsInPiecesOfTheFilesAreTheSameHoweverTheyAreTaken) {
  FakeSource pieces;
  pieces.AddInPieces("x", {4, 8}, {{{0, 0}, {4, 3}}, {{0, 3}, {4, 5}}});
  source_ = pieces;
  const RankLayout whole = AskFor({"x"}, Sharding{}, MeshOf({1}));
  Sharding rows;
  rows.boxes = {Rows(0, 1, 8), Rows(1, 3, 8), Rows(3, 4, 8)};
  const RankLayout apart = AskFor({"x"}, rows, MeshOf({1}));
  EXPECT_THAT(MatchPlans(Plan(source_, whole), Plan(source_, apart)).differs, IsEmpty());
}

}  // namespace
}  // namespace ckptd
