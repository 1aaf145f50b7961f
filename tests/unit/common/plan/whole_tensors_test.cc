#include "common/plan/whole_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/layout/layout.h"
#include "common/plan/group_plan.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint32_t kRanks = 6;

struct Planned {
  Planned(CheckpointIndex made, const std::string& layout)
      : index(std::make_shared<const CheckpointIndex>(std::move(made))) {
    const LayoutRules rules = LayoutRules::Parse(layout).value();
    std::vector<uint32_t> numbers(kRanks);
    std::iota(numbers.begin(), numbers.end(), 0u);
    group.emplace(GroupPlan::Make(index, rules.ForRanks(*index, numbers).value(), {}).value());
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ranks.push_back(group->Find(rank));
      plans.push_back(PlanRank(*index, rules.ForRank(*index, rank).value(), {}).value());
    }
  }
  std::vector<std::string> Whole(uint64_t least_bytes = 1) const {
    std::vector<std::string> names;
    for (const uint32_t number : group->WholeOn(ranks, least_bytes)) {
      names.push_back(index->tensors[number].name);
    }
    return names;
  }

  std::shared_ptr<const CheckpointIndex> index;
  std::optional<GroupPlan> group;
  std::vector<const PlannedRank*> ranks;
  std::vector<RankPlan> plans;
};

// Of some bytes each, one behind the other.
CheckpointIndex Tensors(const std::vector<std::pair<std::string, Shape>>& wanted) {
  CheckpointIndex index;
  index.source = "/c";
  index.files = {{"/c/a", 0, "2", "4", "1", 3}};
  for (const auto& [name, shape] : wanted) {
    TensorEntry tensor;
    tensor.name = name;
    tensor.dtype = Dtype::kF32;
    tensor.shape = shape;
    Piece piece;
    piece.box = {Shape(shape.size(), 0), shape};
    piece.offset = index.files[0].bytes;
    piece.bytes = ElementCount(shape) * 4;
    index.files[0].bytes += piece.bytes;
    tensor.pieces = {piece};
    index.tensors.push_back(tensor);
  }
  return index;
}

using testing::ElementsAre;
using testing::IsEmpty;

TEST(FindWholeTensors, FindsWhatIsReplicatedOnAllRanksAndIsLargeEnough) {
  const Planned planned(
      Tensors({{"a.large", {8, 8}}, {"a.small", {3}}, {"b.cut", {12, 4}}, {"none", {0, 4}}}),
      R"j({"world_size": 6, "meshes": {"m": {"shape": [6]}},
           "rules": [{"match": "b.*", "mesh": "m", "placements": ["shard(0)"]},
                     {"match": "*", "mesh": "m", "placements": ["replicate"]}]})j");
  EXPECT_THAT(planned.Whole(), ElementsAre("a.large", "a.small"));
  EXPECT_THAT(planned.Whole(13), ElementsAre("a.large"));
  EXPECT_THAT(planned.Whole(256), ElementsAre("a.large"));
  EXPECT_THAT(planned.Whole(257), IsEmpty());
}

TEST(FindWholeTensors, LeavesOutWhatARankLacksAndCountsBytesAsRanksHoldThem) {
  const Planned planned(
      Tensors({{"all", {8}}, {"cast.0", {8}}, {"some", {8}}}),
      R"({"world_size": 6, "rules": [{"match": "some", "only_ranks": [0, 1, 2, 3, 4]},
                                     {"match": "cast.*", "dtype": "BF16"}],
          "default": {}})");
  EXPECT_THAT(planned.Whole(), ElementsAre("all", "cast.0"));
  EXPECT_THAT(planned.Whole(17), ElementsAre("all")) << "bytes are counted as ranks hold them";
}

// Of two ranks that state all of some tensors, each in its dtype.
using Wishes = std::vector<std::pair<std::string, Dtype>>;
std::vector<uint32_t> WholeOfStated(CheckpointIndex made, const std::vector<Wishes>& wishes,
                                    const Sharding& sharding = {}) {
  std::vector<std::shared_ptr<const RankLayout>> stated;
  for (uint32_t rank = 0; rank < wishes.size(); ++rank) {
    RankLayout layout;
    layout.rank = rank;
    layout.world_size = static_cast<uint32_t>(wishes.size());
    layout.shardings.push_back(sharding);
    for (const auto& [name, dtype] : wishes[rank]) {
      layout.targets.push_back({name, 0, dtype, Shape{8}, {}, false, {}});
    }
    stated.push_back(std::make_shared<const RankLayout>(std::move(layout)));
  }
  const auto index = std::make_shared<const CheckpointIndex>(std::move(made));
  const GroupPlan group = GroupPlan::Make(index, JoinEqual(stated), {}).value();
  std::vector<const PlannedRank*> ranks;
  for (uint32_t rank = 0; rank < wishes.size(); ++rank) ranks.push_back(group.Find(rank));
  return group.WholeOn(ranks, 1);
}

TEST(FindWholeTensors, LeavesOutWhatRanksWantInDifferentDtypes) {
  const CheckpointIndex index = Tensors({{"a", {8}}, {"b", {8}}});
  EXPECT_THAT(WholeOfStated(index, {{{"a", Dtype::kF32}, {"b", Dtype::kF32}},
                                    {{"a", Dtype::kBF16}, {"b", Dtype::kF32}}}),
              ElementsAre(1u));
}

TEST(FindWholeTensors, LeavesOutWhatRanksHaveInAnotherOrder) {
  Sharding halves;
  halves.boxes = {{{4}, {4}}, {{0}, {4}}};
  const Wishes wish = {{"a", Dtype::kF32}};
  EXPECT_THAT(WholeOfStated(Tensors({{"a", {8}}}), {wish, wish}, halves), IsEmpty());
}

TEST(FindWholeTensors, LeavesOutWhatARankHoldsTwice) {
  CheckpointIndex index = Tensors({{"a", {8}}, {"b", {8}}});
  index.aliases = {{"tied", "a"}};
  const Wishes twice = {{"a", Dtype::kF32}, {"b", Dtype::kF32}, {"tied", Dtype::kF32}};
  EXPECT_THAT(WholeOfStated(index, {twice, twice}), ElementsAre(1u));
  EXPECT_THAT(WholeOfStated(index, {twice, {{"b", Dtype::kF32}}}), ElementsAre(1u))
      << "twice on one rank is not once on two";
}

TEST(FindWholeTensors, LeavesOutTensorsThatShareBytes) {
  CheckpointIndex index = Tensors({{"a", {8}}, {"b", {8}}, {"c", {8}}, {"d", {8}}});
  index.tensors[2].pieces[0].offset -= 4;  // the last element of b
  EXPECT_THAT(Planned(std::move(index), "replicate:6").Whole(), ElementsAre("a", "d"));
}

TEST(FindWholeTensors, LeavesOutWhatComesInShortRuns) {
  CheckpointIndex index = Tensors({{"a", {8, 8}}, {"b", {8, 8}}});
  index.tensors[1].pieces[0].strides = {1, 8};
  EXPECT_THAT(Planned(std::move(index), "replicate:6").Whole(), ElementsAre("a"));
}

TEST(WholeTensors, HasExactlyTheCopiesOfItsTensors) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (const std::string& layout : SixRankLayouts()) {
      const Planned planned(RandomSource(seed, 80).index, layout);
      ASSERT_OK_AND_ASSIGN(
          const WholeTensors whole,
          WholeTensors::Of(*planned.index, planned.group->WholeOn(planned.ranks, 1)));
      const std::vector<std::string> names = planned.Whole();
      for (const RankPlan& plan : planned.plans) {
        for (const CopyOp& op : plan.ops) {
          const PlannedTensor& tensor = plan.tensors[op.tensor];
          const TensorEntry* source = planned.index->Find(tensor.name);
          EXPECT_EQ(whole.Has(op), std::count(names.begin(), names.end(), source->name) > 0)
              << tensor.name << " of rank " << plan.rank << ", " << layout;
        }
      }
      EXPECT_TRUE(layout != "replicate:6" || !names.empty());
    }
  }
}

TEST(WholeTensors, OfNumbersThatTheIndexLacksAreRefused) {
  const CheckpointIndex index = Tensors({{"a", {8}}});
  const std::vector<uint32_t> numbers = {1};
  EXPECT_THAT(WholeTensors::Of(index, numbers),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

}  // namespace
}  // namespace ckptd
