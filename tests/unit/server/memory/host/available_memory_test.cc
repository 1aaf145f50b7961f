#include "server/memory/host/available_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

// A fake /proc and /sys.
class FakeMachine : public testing::Test {
 protected:
  FakeMachine() { Put("proc/meminfo", "MemTotal:       9000 kB\nMemAvailable:   8000 kB\n"); }

  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  void PutV2(const std::string& group, const std::string& limit, const std::string& usage,
             const std::string& stat = "") {
    Put("sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    Put("sys/fs/cgroup" + group + "/memory.current", usage + "\n");
    Put("sys/fs/cgroup" + group + "/memory.stat", stat);
  }
  void PutV1(const std::string& group, const std::string& limit, const std::string& usage,
             const std::string& stat = "") {
    Put("sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", limit + "\n");
    Put("sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", usage + "\n");
    Put("sys/fs/cgroup/memory" + group + "/memory.stat", stat);
  }
  uint64_t Available() {
    const auto bytes = AvailableMemory(root_);
    EXPECT_OK(bytes);
    return bytes.value_or(0);
  }

  uint64_t Total() {
    const auto bytes = TotalMemory(root_);
    EXPECT_OK(bytes);
    return bytes.value_or(0);
  }

  const TempFolder folder_;
  const std::string root_ = folder_ / "";
};

TEST_F(FakeMachine, WithoutGroupsTheMachineDecides) { EXPECT_EQ(Available(), 8'192'000U); }

TEST_F(FakeMachine, AVersion2LimitLessItsUsageDecidesWhenSmaller) {
  Put("proc/self/cgroup", "0::/job\n");
  PutV2("/job", "1000000", "400000");
  EXPECT_EQ(Available(), 600'000U);
}

TEST_F(FakeMachine, PageCacheOfTheGroupIsNotCountedAsUsed) {
  Put("proc/self/cgroup", "0::/job\n");
  PutV2("/job", "1000000", "400000", "anon 5\ninactive_file 100000\nactive_file 50000\nshmem 7\n");
  EXPECT_EQ(Available(), 750'000U);
}

TEST_F(FakeMachine, AParentsTighterLimitDecides) {
  Put("proc/self/cgroup", "0::/pod/container\n");
  PutV2("/pod/container", "max", "1");
  PutV2("/pod", "500000", "100000");
  EXPECT_EQ(Available(), 400'000U);
}

TEST_F(FakeMachine, AGroupWithoutALimitDoesNotDecide) {
  Put("proc/self/cgroup", "0::/job\n");
  PutV2("/job", "max", "99999999999");
  EXPECT_EQ(Available(), 8'192'000U);
}

TEST_F(FakeMachine, InAContainerTheTopOfTheMountIsAsked) {
  // The path is the host's, the mount shows only the container's own group.
  Put("proc/self/cgroup", "0::/kubepods/pod7/abc\n");
  PutV2("", "300000", "100000");
  EXPECT_EQ(Available(), 200'000U);
}

TEST_F(FakeMachine, AGroupOverItsLimitLeavesNothing) {
  Put("proc/self/cgroup", "0::/job\n");
  PutV2("/job", "1000", "5000");
  EXPECT_EQ(Available(), 0U);
}

TEST_F(FakeMachine, AVersion1LimitDecidesWhenSmaller) {
  Put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
  PutV1("/job", "2000000", "900000", "total_inactive_file 100000\n");
  EXPECT_EQ(Available(), 1'200'000U);
}

TEST_F(FakeMachine, APathThatLeavesTheMountIsNotFollowed) {
  Put("proc/self/cgroup", "0::/../../secret\n");
  PutV2("/../secret", "1", "1");
  EXPECT_EQ(Available(), 8'192'000U);
}

TEST_F(FakeMachine, GarbledFilesAreNoLimit) {
  Put("proc/self/cgroup", "::::\n\nnonsense\n0::/job");
  PutV2("/job", "-17x", "");
  EXPECT_EQ(Available(), 8'192'000U);
}

TEST_F(FakeMachine, AllThereIsIsTheMachinesWithoutGroups) { EXPECT_EQ(Total(), 9'216'000U); }

TEST_F(FakeMachine, AllThereIsIsTheTightestLimit) {
  Put("proc/self/cgroup", "0::/pod/container\n");
  PutV2("/pod/container", "700000", "1");
  PutV2("/pod", "500000", "100000");
  EXPECT_EQ(Total(), 500'000U);
}

TEST_F(FakeMachine, AllThereIsMayBeInAnotherGroupThanWhatIsLeft) {
  Put("proc/self/cgroup", "0::/pod/container\n");
  PutV2("/pod/container", "700000", "600000");
  PutV2("/pod", "500000", "100000");
  EXPECT_EQ(Total(), 500'000U);
  EXPECT_EQ(Available(), 100'000U);
}

TEST_F(FakeMachine, HasALevelForEachGroupWithALimit) {
  Put("proc/self/cgroup", "4:memory:/job/step\n0::/pod/container\n");
  PutV2("/pod/container", "700000", "600000");
  PutV2("/pod", "max", "600000");
  PutV1("/job/step", "500000", "100000");
  PutV1("/job", "9223372036854771712", "100000");
  ASSERT_OK_AND_ASSIGN(const auto levels, MemoryLevels(root_));
  ASSERT_EQ(levels.size(), 3U);
  EXPECT_EQ(levels[0].name, kMachineLevel);
  EXPECT_EQ(levels[0].left, 8'192'000U);
  EXPECT_EQ(levels[1].left, 400'000U);
  EXPECT_EQ(levels[2].left, 100'000U);
}

TEST_F(FakeMachine, CallsAGroupTheSameWhateverPathLeadsToIt) {
  Put("proc/self/cgroup", "0::/kubepods/pod7/abc\n");
  PutV2("/kubepods/pod7/abc", "300000", "100000");
  const std::string inside = MemoryLevels(root_).value().back().name;
  // In its container its folder is the mount's top.
  std::filesystem::rename(root_ + "sys/fs/cgroup/kubepods/pod7/abc", root_ + "abc");
  std::filesystem::remove_all(root_ + "sys/fs/cgroup");
  std::filesystem::rename(root_ + "abc", root_ + "sys/fs/cgroup");
  EXPECT_EQ(MemoryLevels(root_).value().back().name, inside);
  EXPECT_TRUE(inside.starts_with("cgroup2-")) << inside;
}

TEST_F(FakeMachine, WithoutMeminfoThereIsAnError) {
  std::filesystem::remove(root_ + "proc/meminfo");
  EXPECT_FALSE(AvailableMemory(root_).ok());
  EXPECT_FALSE(TotalMemory(root_).ok());
}

TEST(AvailableMemory, ThisMachineHasSome) {
  ASSERT_OK_AND_ASSIGN(const uint64_t bytes, AvailableMemory());
  EXPECT_GT(bytes, uint64_t{1} << 20);
}

}  // namespace
}  // namespace ckptd
