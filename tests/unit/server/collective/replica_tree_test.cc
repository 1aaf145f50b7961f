#include "server/collective/replica_tree.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

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

}  // namespace
}  // namespace ckptd
