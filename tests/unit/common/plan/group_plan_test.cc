#include "common/plan/group_plan.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "common/base/reasons.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string TextOf(const PlannedTensor& tensor) {
  return fmt::format("{} [{}] {} [{}] {} {} {}", tensor.name, fmt::join(tensor.aliases, ","),
                     NameOf(tensor.dtype), fmt::join(tensor.shape, ","), tensor.offset,
                     tensor.bytes, tensor.padded_bytes);
}

std::string TextOf(const CopyOp& op, const RankPlan& plan) {
  return fmt::format("{} {} {} {} {} {} {} {} [{}] [{}] [{}]", plan.tensors[op.tensor].name,
                     op.file, NameOf(op.from), NameOf(op.to), op.file_offset, op.slab_offset,
                     op.run_bytes, op.dims, fmt::join(op.count, ","),
                     fmt::join(op.file_stride, ","), fmt::join(op.slab_stride, ","));
}

std::vector<std::string> OpsOf(const RankPlan& plan) {
  std::vector<std::string> ops;
  for (const CopyOp& op : plan.ops) ops.push_back(TextOf(op, plan));
  std::sort(ops.begin(), ops.end());
  return ops;
}

std::vector<std::string> TensorsOf(const RankPlan& plan) {
  std::vector<std::string> tensors;
  for (const PlannedTensor& tensor : plan.tensors) tensors.push_back(TextOf(tensor));
  return tensors;
}

std::vector<uint32_t> Ranks(uint32_t count) {
  std::vector<uint32_t> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0u);
  return ranks;
}

// A random source, one of the layouts, and the plan of each of its ranks alone.
class GroupOfSix : public testing::TestWithParam<std::tuple<uint64_t, size_t>> {
 protected:
  void SetUp() override {
    const auto [seed, number] = GetParam();
    index_ = std::make_shared<const CheckpointIndex>(RandomSource(seed, 60).index);
    ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse(SixRankLayouts()[number]));
    ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index_, Ranks(6)));
    ASSERT_OK_AND_ASSIGN(group_, GroupPlan::Make(index_, cohorts, {}));
    for (uint32_t rank = 0; rank < 6; ++rank) {
      ASSERT_OK_AND_ASSIGN(const RankLayout layout, rules.ForRank(*index_, rank));
      ASSERT_OK_AND_ASSIGN(alone_.emplace_back(), PlanRank(*index_, layout, {}));
    }
  }
  std::vector<const PlannedRank*> Some(uint32_t step) const {
    std::vector<const PlannedRank*> some;
    for (uint32_t rank = 0; rank < 6; rank += step) some.push_back(group_->Find(rank));
    return some;
  }

  std::shared_ptr<const CheckpointIndex> index_;
  absl::StatusOr<GroupPlan> group_ = absl::UnknownError("not planned");
  std::vector<RankPlan> alone_;
};

TEST_P(GroupOfSix, HasTheNumbersAndTheDigestOfEachRankAlone) {
  std::vector<uint64_t> digests;
  for (const RankPlan& plan : alone_) {
    const PlannedRank& planned = *group_->Find(plan.rank);
    EXPECT_EQ(planned.rank, plan.rank);
    EXPECT_EQ(planned.slab_bytes, plan.slab_bytes);
    EXPECT_EQ(planned.tensor_bytes, plan.tensor_bytes);
    EXPECT_EQ(planned.tensors, plan.tensors.size());
    EXPECT_EQ(planned.copies, plan.ops.size());
    EXPECT_EQ(planned.digest, plan.digest);
    digests.push_back(plan.digest);
  }
  EXPECT_EQ(group_->digest(), CombineDigests(digests));
}

TEST_P(GroupOfSix, ReadsWhatAllRanksRead) {
  EXPECT_EQ(group_->ReadBytes(), ReadBytesPerFile(*index_, alone_));
}

TEST_P(GroupOfSix, CountsEqualShardsOnce) {
  // Of plans for one rank, those with the same tensors from the same places are equal.
  std::map<std::pair<std::vector<std::string>, std::vector<std::string>>, uint64_t> distinct;
  for (const RankPlan& plan : alone_) distinct[{TensorsOf(plan), OpsOf(plan)}] = plan.tensor_bytes;
  uint64_t bytes = 0;
  for (const auto& [shard, of_tensors] : distinct) bytes += of_tensors;
  EXPECT_EQ(group_->DistinctBytes(), bytes);
}

TEST_P(GroupOfSix, HasEachTensorAndCopyOfARankInOneWindow) {
  for (const uint64_t copies : {uint64_t{1}, uint64_t{20}, uint64_t{1} << 40}) {
    std::map<uint32_t, std::vector<std::string>> tensors;
    std::map<uint32_t, std::vector<std::string>> ops;
    for (const RankPlan& plan : alone_) tensors[plan.rank].resize(plan.tensors.size());
    for (const PlanWindow& window : group_->Windows(Some(1), copies)) {
      const GroupPlan::Open open = group_->OpenWindow(window);
      for (const PlannedRank& planned : group_->ranks()) {
        ASSERT_OK_AND_ASSIGN(const RankPlan part, open.PlanOf(planned));
        EXPECT_EQ(part.slab_bytes, planned.slab_bytes);
        ASSERT_EQ(open.NumbersOf(planned).size(), part.tensors.size());
        for (size_t i = 0; i < part.tensors.size(); ++i) {
          tensors[planned.rank].at(open.NumbersOf(planned)[i]) = TextOf(part.tensors[i]);
        }
        for (const std::string& op : OpsOf(part)) ops[planned.rank].push_back(op);
      }
    }
    for (const RankPlan& plan : alone_) {
      std::sort(ops[plan.rank].begin(), ops[plan.rank].end());
      EXPECT_EQ(tensors[plan.rank], TensorsOf(plan));
      EXPECT_EQ(ops[plan.rank], OpsOf(plan));
    }
  }
}

TEST_P(GroupOfSix, CutsWindowsSoThatNoByteIsReadInTwo) {
  std::vector<uint64_t> reached(index_->files.size());
  for (const PlanWindow& window : group_->Windows(Some(1), 1)) {
    const GroupPlan::Open open = group_->OpenWindow(window);
    std::vector<uint64_t> ends = reached;
    for (const PlannedRank& planned : group_->ranks()) {
      ASSERT_OK_AND_ASSIGN(const RankPlan part, open.PlanOf(planned));
      for (const CopyOp& op : part.ops) {
        EXPECT_GE(op.file_offset, reached[op.file]);
        ends[op.file] = std::max(ends[op.file], op.file_end());
      }
    }
    reached = ends;
  }
}

// Readers of other hosts may know of other ranks.
TEST_P(GroupOfSix, CutsTheSameWindowsWhateverOtherRanksThereAre) {
  const auto [seed, number] = GetParam();
  ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse(SixRankLayouts()[number]));
  const std::vector<uint32_t> some = {0, 3};
  ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index_, some));
  ASSERT_OK_AND_ASSIGN(const GroupPlan smaller, GroupPlan::Make(index_, cohorts, {}));
  const std::vector<const PlannedRank*> there = {smaller.Find(0), smaller.Find(3)};
  const auto ours = group_->Windows(Some(3), 9);
  const auto theirs = smaller.Windows(there, 9);
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t w = 0; w < ours.size(); ++w) {
    EXPECT_EQ(ours[w].bytes, theirs[w].bytes);
    for (const uint32_t rank : some) {
      EXPECT_EQ(OpsOf(group_->OpenWindow(ours[w]).PlanOf(*group_->Find(rank)).value()),
                OpsOf(smaller.OpenWindow(theirs[w]).PlanOf(*smaller.Find(rank)).value()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sources, GroupOfSix,
                         testing::Combine(testing::Range<uint64_t>(1, 7),
                                          testing::Range<size_t>(0, SixRankLayouts().size())));

class SmallGroup : public testing::Test {
 protected:
  absl::StatusOr<GroupPlan> Plan(const std::vector<RankLayout>& layouts) {
    std::vector<std::shared_ptr<const RankLayout>> stated;
    for (const RankLayout& layout : layouts) {
      stated.push_back(std::make_shared<const RankLayout>(layout));
    }
    index_ = std::make_shared<const CheckpointIndex>(source_.index());
    return GroupPlan::Make(index_, JoinEqual(stated), {});
  }
  FakeSource source_;
  std::shared_ptr<const CheckpointIndex> index_;
};

TEST_F(SmallGroup, JoinsStatementsThatDifferInTheirRankAlone) {
  source_.Add("x", {8});
  std::vector<std::shared_ptr<const RankLayout>> stated;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const Sharding sharding = OnMesh({rank == 3 ? Replicate() : ShardOf(0)});
    stated.push_back(
        std::make_shared<const RankLayout>(AskFor({"x"}, sharding, MeshOf({4}), rank)));
  }
  const std::vector<Cohort> cohorts = JoinEqual(stated);
  ASSERT_THAT(cohorts, SizeIs(2));
  EXPECT_THAT(cohorts[0].ranks, ElementsAre(0, 1, 2));
  EXPECT_THAT(cohorts[1].ranks, ElementsAre(3));
}

TEST_F(SmallGroup, KeepsApartWhoIsInOtherMeshes) {
  source_.Add("x", {8});
  Mesh mesh = MeshOf({2});
  mesh.ranks = {1, 2};
  std::vector<RankLayout> layouts;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    layouts.push_back(AskFor({"x"}, OnMesh({ShardOf(0)}), mesh, rank));
    layouts.back().world_size = 3;
  }
  ASSERT_OK_AND_ASSIGN(const GroupPlan group, Plan(layouts));
  EXPECT_EQ(group.Find(0)->tensors, 0u);
  EXPECT_EQ(group.Find(1)->tensors, 1u);
  EXPECT_EQ(group.Find(2)->tensor_bytes, 16u);
}

TEST_F(SmallGroup, NamesTheRankThatCannotBePlanned) {
  source_.Add("x", {8});
  std::vector<RankLayout> layouts;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    layouts.push_back(AskFor({rank == 2 ? "y" : "x"}, Sharding{}, MeshOf({3}), rank));
  }
  const auto group = Plan(layouts);
  EXPECT_THAT(group, FailsWith(absl::StatusCode::kNotFound, reason::kTensorNotFound));
  EXPECT_EQ(FactsOf(group.status())["rank"], "2");
}

TEST_F(SmallGroup, NamesRankAndTensorOfACutThatCannotBe) {
  source_.Add("w", {8});
  source_.Add("x", {4, 6}, Dtype::kF4);
  std::vector<RankLayout> layouts;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    Sharding sharding;
    sharding.boxes = {Box{{0, 0}, {4, rank == 1 ? 3u : 2u}}};
    layouts.push_back(AskFor({"x"}, sharding, MeshOf({2}), rank));
  }
  const auto group = Plan(layouts);
  EXPECT_THAT(group, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_EQ(FactsOf(group.status())["rank"], "1");
  EXPECT_EQ(FactsOf(group.status())["tensor"], "x");
  EXPECT_THAT(MessageOf(group.status()), HasSubstr("rank 1: planning tensor 'x' for rank 1"));
}

TEST_F(SmallGroup, EndsWhenItsCallerSaysSo) {
  source_.Add("x", {8});
  ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse("fsdp:4"));
  ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(source_.index(), Ranks(4)));
  const auto group = GroupPlan::Make(
      std::make_shared<const CheckpointIndex>(source_.index()), cohorts, {},
      [](GroupPlan::Size size) {
        return size.ranks < 3 ? absl::OkStatus() : absl::CancelledError("enough");
      });
  EXPECT_EQ(group.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(SmallGroup, OfManyTensorsHasAsManyCopiesAsKinds) {
  for (int i = 0; i < 50; ++i) source_.Add(fmt::format("x{}", i), {i % 2 == 0 ? 8u : 4u});
  ASSERT_OK_AND_ASSIGN(const LayoutRules rules, LayoutRules::Parse("fsdp:4"));
  ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(source_.index(), Ranks(4)));
  GroupPlan::Size last;
  ASSERT_OK(GroupPlan::Make(std::make_shared<const CheckpointIndex>(source_.index()), cohorts, {},
                            [&](GroupPlan::Size size) {
                              last = size;
                              return absl::OkStatus();
                            })
                .status());
  EXPECT_EQ(last.ranks, 4u);
  EXPECT_EQ(last.copies, 4u * 2);
}

}  // namespace
}  // namespace ckptd
