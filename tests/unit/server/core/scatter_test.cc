#include "server/core/scatter.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

TEST(ReplicaTree, BringsEachStepToEachReplicaOnceFromSomebodyWhoHasIt) {
  for (uint32_t count = 1; count <= 9; ++count) {
    for (uint32_t fanout = 1; fanout <= 3; ++fanout) {
      for (uint32_t reader = 0; reader < 12; ++reader) {
        std::vector<uint32_t> replicas(count);
        std::iota(replicas.begin(), replicas.end(), 2u);  // 2, 3, ...
        const ReplicaTree tree(replicas, reader, fanout);
        std::set<uint32_t> have = {reader};
        std::vector<uint32_t> next = tree.FromReader();
        for (const uint32_t child : next) {
          EXPECT_EQ(tree.ParentOf(child), reader);
          EXPECT_EQ(tree.DepthOf(child), 0u);
        }
        while (!next.empty()) {
          const uint32_t replica = next.back();
          next.pop_back();
          ASSERT_TRUE(have.insert(replica).second) << replica << " receives twice";
          for (const uint32_t child : tree.ChildrenOf(replica)) {
            EXPECT_EQ(tree.ParentOf(child), replica);
            EXPECT_EQ(tree.DepthOf(child), tree.DepthOf(replica) + 1);
            next.push_back(child);
          }
          EXPECT_LE(tree.ChildrenOf(replica).size(), fanout);
        }
        for (const uint32_t replica : replicas) EXPECT_EQ(have.count(replica), 1u) << replica;
      }
    }
  }
}

TEST(FindReplicas, PutsEqualContentTogetherAndLeavesOutWhoNeedsNothing) {
  PlannedRank a;
  a.content = 7;
  PlannedRank b = a;
  PlannedRank other;
  other.content = 8;
  const std::vector<const PlannedRank*> plans = {&other, &a, nullptr, &b};
  const std::vector<ReplicaSet> sets = FindReplicas(plans);
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].ranks, (std::vector<uint32_t>{0}));
  EXPECT_EQ(sets[1].ranks, (std::vector<uint32_t>{1, 3}));
  EXPECT_EQ(sets[1].plan, &a);
}

ScatterCall GoodCall() {
  ScatterCall call;
  call.rank = 1;
  call.ranks = {0, 4, 5};
  call.readers = {0};
  call.replicas = {1, 2};
  return call;
}

TEST(ScatterCall, IsRefusedUnlessItFitsTogether) {
  EXPECT_OK(CheckScatterCall(GoodCall()));
  const auto refused = [](const std::function<void(ScatterCall&)>& change) {
    ScatterCall call = GoodCall();
    change(call);
    EXPECT_THAT(CheckScatterCall(call),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  };
  refused([](auto& call) { call.rank = 3; });
  refused([](auto& call) { call.ranks = {0}; });
  refused([](auto& call) { call.readers = {}; });
  refused([](auto& call) { call.readers = {3}; });
  refused([](auto& call) { call.replicas = {2}; });
  refused([](auto& call) { call.whole = {5, 5}; });
  refused([](auto& call) { call.replicas = {1, 3}; });
  refused([](auto& call) { call.replicas = {1, 1}; });
  refused([](auto& call) { call.replicas = {2, 1}; });
  refused([](auto& call) { call.fanout = 0; });
  refused([](auto& call) { call.size.step_bytes = (1 << 20) - 1; });
  refused([](auto& call) { call.size.step_bytes = uint64_t{1} << 40; });
  refused([](auto& call) { call.size.step_tensors = 0; });
}

TEST(ScatterDigest, TellsApartWhateverChangesTheOrderOfOperations) {
  const ScatterOrder order = {{}, {}, 5};
  std::set<uint64_t> digests = {ScatterDigest(GoodCall(), order, 9)};
  const auto another = [&](const std::function<void(ScatterCall&)>& change, uint64_t of_order = 5,
                           uint64_t of_rank = 9) {
    ScatterCall call = GoodCall();
    change(call);
    EXPECT_TRUE(digests.insert(ScatterDigest(call, {{}, {}, of_order}, of_rank)).second);
  };
  another([](auto& call) { call.rank = 2; });
  another([](auto& call) { call.ranks = {0, 4, 6}; });
  another([](auto& call) { call.readers = {0, 1}; });
  another([](auto& call) { call.replicas = {1}; });
  another([](auto& call) { call.fanout = 2; });
  another([](auto& call) { call.whole = {3}; });
  another([](auto&) {}, 6);
  another([](auto&) {}, 5, 10);
}

}  // namespace
}  // namespace ckptd
