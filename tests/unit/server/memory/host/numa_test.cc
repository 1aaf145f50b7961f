#include "server/memory/host/numa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "server/memory/host/segment.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Nodes 0 and 1 with two cores each, and node 2 with memory only.
const std::vector<NumaNode> kNodes = {{0, {0, 1}}, {1, {2, 3}}, {2, {}}};

std::optional<unsigned> Choose(const std::string& wanted, const std::vector<unsigned>& cores,
                               NumaPlace place = {}) {
  const auto node = ChooseNumaNode(wanted, kNodes, cores, place);
  EXPECT_OK(node);
  return node.value_or(std::nullopt);
}

TEST(NumaNodes, AreReadWithTheirCoresAsTheKernelListsThem) {
  const TempFolder root;
  root.Write("sys/devices/system/node/has_memory", "0,2-3\n");
  root.Write("sys/devices/system/node/node0/cpulist", "0-2,8\n");
  root.Write("sys/devices/system/node/node2/cpulist", "\n");
  root.Write("sys/devices/system/node/node3/cpulist", "4\n");
  const std::vector<NumaNode> nodes = ReadNumaNodes(root / "");
  ASSERT_EQ(nodes.size(), 3U);
  EXPECT_THAT(nodes[0].cores, ElementsAre(0, 1, 2, 8));
  EXPECT_EQ(nodes[1].number, 2U);
  EXPECT_THAT(nodes[1].cores, IsEmpty());
  EXPECT_THAT(nodes[2].cores, ElementsAre(4));
}

TEST(NumaNodes, AreNoneWhereTheKernelShowsNone) {
  const TempFolder root;
  EXPECT_THAT(ReadNumaNodes(root / ""), IsEmpty());
}

TEST(NumaNodes, OfNonsenseAreThoseThatMakeSense) {
  const TempFolder root;
  root.Write("sys/devices/system/node/has_memory", "x,1,0-99999999999,7-3\n");
  root.Write("sys/devices/system/node/node1/cpulist", "2,2,1\n");
  const std::vector<NumaNode> nodes = ReadNumaNodes(root / "");
  ASSERT_EQ(nodes.size(), 1U);
  EXPECT_THAT(nodes[0].cores, ElementsAre(1, 2));
}

TEST(NumaNodes, OfThisMachineHaveTheCoresWeRunOn) {
  const std::vector<NumaNode> nodes = ReadNumaNodes();
  if (nodes.empty()) GTEST_SKIP() << "this kernel shows no NUMA nodes";
  std::vector<unsigned> all;
  for (const NumaNode& node : nodes) all.insert(all.end(), node.cores.begin(), node.cores.end());
  EXPECT_THAT(all, ::testing::IsSupersetOf(AllowedCores()));
}

TEST(NumaChoice, IsTheNodeOfTheCoresThatTheDaemonMayUse) {
  EXPECT_EQ(Choose("auto", {2, 3}), 1U);
  EXPECT_EQ(Choose("auto", {0}), 0U);
  EXPECT_EQ(Choose("auto", {3}, {.local_rank = 0, .local_size = 4}), 1U);
}

TEST(NumaChoice, OfRanksThatMayUseAllCoresGoesInBlocks) {
  std::vector<unsigned> chosen;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    chosen.push_back(Choose("auto", {0, 1, 2, 3}, {rank, 4}).value_or(99));
  }
  EXPECT_THAT(chosen, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(Choose("auto", {}, {.local_rank = 1, .local_size = 2}), 1U);
}

TEST(NumaChoice, OfOneRankThatMayUseAllCoresIsTheKernels) {
  EXPECT_EQ(Choose("auto", {0, 1, 2, 3}), std::nullopt);
}

TEST(NumaChoice, IsNoneOnAMachineOfOneNode) {
  const auto node = ChooseNumaNode("auto", {{0, {0, 1}}}, {0}, {.local_rank = 1, .local_size = 2});
  ASSERT_OK(node);
  EXPECT_EQ(*node, std::nullopt);
}

TEST(NumaChoice, CanBeMadeByHand) {
  EXPECT_EQ(Choose("off", {2, 3}), std::nullopt);
  EXPECT_EQ(Choose("2", {0, 1}), 2U);
}

TEST(NumaChoice, OfANodeThatIsNotThereNamesThoseThatAre) {
  for (const std::string wanted : {"3", "near", "-1", "01", ""}) {
    const auto node = ChooseNumaNode(wanted, kNodes, {}, {});
    EXPECT_THAT(node, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
    EXPECT_THAT(node, Says("--numa " + wanted));
    EXPECT_THAT(node, Says("(0, 1, 2)"));
  }
}

// {policy, node that holds the page} for the page at `address`, from the kernel.
std::pair<int, int> PolicyOf(std::byte* address) {
  int policy = -1;
  int node = -1;
  ::syscall(SYS_get_mempolicy, &policy, nullptr, 0, address, MPOL_F_ADDR);
  ::syscall(SYS_get_mempolicy, &node, nullptr, 0, address, MPOL_F_ADDR | MPOL_F_NODE);
  return {policy, node};
}

TEST(NumaMemory, OfASegmentComesFromTheNodeThatWasChosen) {
  const std::vector<NumaNode> nodes = ReadNumaNodes();
  if (nodes.empty()) GTEST_SKIP() << "this kernel shows no NUMA nodes";
  const unsigned last = nodes.back().number;
  if (!CheckPreferNode(last).ok()) GTEST_SKIP() << CheckPreferNode(last);
  const auto chosen = HostSegment::Create(1, kHugePageBytes, {.numa_node = last});
  ASSERT_OK(chosen);
  EXPECT_EQ(PolicyOf((*chosen)->data()),
            std::make_pair(int{MPOL_PREFERRED}, static_cast<int>(last)));
  const auto any = HostSegment::Create(2, kHugePageBytes, {});
  ASSERT_OK(any);
  EXPECT_EQ(PolicyOf((*any)->data()).first, int{MPOL_DEFAULT});
}

TEST(NumaMemory, OnANodeThatIsNotThereIsRefusedWithAReason) {
  EXPECT_THAT(CheckPreferNode(1023), Says("NUMA node 1023"));
}

}  // namespace
}  // namespace ckptd
