#include "common/base/file_lock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

class FileLockTest : public ::testing::Test {
 protected:
  const TempFolder folder_;
  const std::string path_ = folder_ / "rank-0.sock.lock";
};

TEST_F(FileLockTest, IsHeldByOneAtATimeAndLeavesNoFile) {
  ASSERT_OK_AND_ASSIGN(FileLock first, FileLock::Take(path_));
  EXPECT_THAT(FileLock::Take(path_).status(),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
  FileLock moved = std::move(first);
  EXPECT_TRUE(moved.held());
  moved = FileLock();
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_OK(FileLock::Take(path_).status());
}

TEST_F(FileLockTest, IsTakenOverFromAProcessThatIsGone) {
  folder_.Write("rank-0.sock.lock", "");
  EXPECT_OK(FileLock::Take(path_).status());
}

TEST_F(FileLockTest, SaysWhatItsHolderHasWritten) {
  ASSERT_OK_AND_ASSIGN(const FileLock lock, FileLock::Take(path_));
  for (const std::string text : {"a long text", "1234"}) {
    EXPECT_OK(lock.Write(text));
    EXPECT_EQ(ReadSmallFile(path_, 100).value_or(""), text);
  }
}

TEST_F(FileLockTest, ShowsWhenItsHolderWasInUse) {
  ASSERT_OK_AND_ASSIGN(const FileLock lock, FileLock::Take(path_));
  const auto long_ago = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(path_, long_ago);
  lock.Touch();
  EXPECT_GT(std::filesystem::last_write_time(path_), long_ago);
}

TEST_F(FileLockTest, RemovesNoFileOfAnother) {
  ASSERT_OK_AND_ASSIGN(FileLock robbed, FileLock::Take(path_));
  std::filesystem::remove(path_);
  ASSERT_OK_AND_ASSIGN(const FileLock other, FileLock::Take(path_));
  robbed.Release();
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(FileLockTest, IsNeverHeldTwiceWhileItsFileComesAndGoes) {
  std::atomic<int> holders = 0;
  std::atomic<int> taken = 0;
  std::atomic<bool> twice = false;
  const auto take = [&] {
    for (int i = 0; i < 20'000; ++i) {
      absl::StatusOr<FileLock> lock = FileLock::Take(path_);
      if (!lock.ok()) continue;
      ++taken;
      if (++holders > 1) twice = true;
      std::this_thread::yield();  // gives others a chance
      --holders;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(take);
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(twice);
  EXPECT_GT(taken, 100);
}

TEST(FileLock, TellsWhetherItsFileIsStillThere) {
  const TempFolder folder;
  ASSERT_OK_AND_ASSIGN(const FileLock lock, FileLock::Take(folder / "lock"));
  EXPECT_TRUE(lock.IsThere());
  ASSERT_EQ(::unlink((folder / "lock").c_str()), 0);
  EXPECT_FALSE(lock.IsThere());
  folder.Write("lock", "another one");
  EXPECT_FALSE(lock.IsThere());
}

}  // namespace
}  // namespace ckptd
