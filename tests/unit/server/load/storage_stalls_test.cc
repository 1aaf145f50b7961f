#include "server/load/storage_stalls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using testing::HasSubstr;

constexpr char kMounts[] =
    "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
    "40 21 0:45 / /data rw - nfs4 server:/data rw\n"
    "41 40 0:46 / /data/with\\040blank rw - nfs4 server:/blank rw\n";

TEST(MountOf, IsTheInnermostOneThatThePathLiesIn) {
  EXPECT_EQ(MountOf("/data/model", kMounts), "/data");
  EXPECT_EQ(MountOf("/data/with blank/model", kMounts), "/data/with blank");
  EXPECT_EQ(MountOf("/database/model", kMounts), "/");
  EXPECT_EQ(MountOf("/data", kMounts), "/data");
}

class StorageStallsTest : public ::testing::Test {
 protected:
  absl::Status Check(const std::string& source) { return stalls_.Check("loading", source); }

  StorageStalls stalls_{std::chrono::nanoseconds(0)};
};

TEST_F(StorageStallsTest, ASourceThatStandsStillIsRefusedUntilItsFileAnswers) {
  const auto watch = stalls_.Watch("/ckpt/a");
  {
    const StorageWatch::Call call(watch.get(), "/ckpt/a/b.safetensors", 4096);
    EXPECT_OK(Check("/ckpt/a")) << "somebody waits for it yet";
    watch->LeaveBehind();
    const absl::Status refused = Check("/ckpt/a");
    EXPECT_THAT(refused, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kStorageStalled));
    EXPECT_EQ(FactsOf(refused).at("file"), "/ckpt/a/b.safetensors");
    EXPECT_OK(Check("/ckpt/other"));
  }
  EXPECT_OK(Check("/ckpt/a"));
}

TEST_F(StorageStallsTest, AMountHoldsUpNoMoreThanAFew) {
  const auto first = stalls_.Watch("/ckpt/a");
  const auto second = stalls_.Watch("/ckpt/b");
  const StorageWatch::Call call_a(first.get(), "/ckpt/a");
  first->LeaveBehind();
  EXPECT_OK(Check("/ckpt/c"));
  const StorageWatch::Call call_b(second.get(), "/ckpt/b");
  second->LeaveBehind();
  EXPECT_THAT(Check("/ckpt/c"),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kStorageStalled));
  EXPECT_OK(Check("/proc/self/fd/9")) << "another mount";
}

TEST_F(StorageStallsTest, MemoryThatReadsMayStillWriteToIsNamed) {
  const auto watch = stalls_.Watch("/ckpt/a");
  watch->Hold(4 << 20);
  watch->LeaveBehind();
  EXPECT_EQ(stalls_.DescribeHeld(), "");
  const StorageWatch::Call call(watch.get(), "/ckpt/a", 64);
  EXPECT_THAT(stalls_.DescribeHeld(), HasSubstr("4.2 MB are kept for reads that have not returned: "
                                                "/ckpt/a has not answered"));
}

}  // namespace
}  // namespace ckptd
