#include "server/daemon/job_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

class JobLockTest : public ::testing::Test {
 protected:
  JobLockTest() {
    config_.run_dir = folder_.path();
    options_.nproc = 3;
  }
  // What the lock of this process says, with `start` and `pid_namespace` added to its own.
  void Say(uint64_t start, uint64_t pid_namespace) {
    std::ifstream words(folder_ / kLock);
    uint64_t pid = 0;
    uint64_t own_start = 0;
    uint64_t own_namespace = 0;
    words >> pid >> own_start >> own_namespace;
    std::ostringstream said;
    said << pid << " " << own_start + start << " " << own_namespace + pid_namespace << " 3";
    folder_.Write(kLock, said.str());
  }

  static constexpr char kLock[] = "default/node-0.lock";
  TempFolder folder_;
  Config config_;
  LaunchOptions options_;
};

TEST_F(JobLockTest, TellsWhoHasItAndHowManyDaemonsItStarts) {
  ASSERT_OK_AND_ASSIGN(const FileLock lock, LockJob(config_, options_));
  const JobHolder holder = HolderOfJob(config_, options_);
  EXPECT_EQ(holder.pid, ::getpid());
  EXPECT_EQ(holder.nproc, 3);
  EXPECT_FALSE(holder.elsewhere);
  EXPECT_TRUE(IsHeld(LockJob(config_, options_).status()));
}

TEST_F(JobLockTest, ToEndAJobNobodyNamesTheGroupThatItLetIn) {
  config_.allow_gid = std::to_string(::getegid());
  ASSERT_OK(LockJob(config_, options_));
  config_.allow_gid = "";
  EXPECT_OK(LockJobToEnd(config_, options_));
  struct stat info = {};
  ASSERT_EQ(::stat((folder_ / "default").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0750u) << "clients of that group may still be there";
  ASSERT_EQ(::chmod((folder_ / "default").c_str(), 0770), 0);
  EXPECT_THAT(LockJobToEnd(config_, options_).status(), Says("nobody else can enter"));
}

TEST_F(JobLockTest, ALaterProcessOfTheSameNumberIsNotTakenForTheHolder) {
  ASSERT_OK_AND_ASSIGN(const FileLock lock, LockJob(config_, options_));
  Say(1, 0);
  EXPECT_EQ(HolderOfJob(config_, options_).pid, 0);
  for (const char* said : {"", "1", "1 0 0 0", "-1 0 0 0", "many 2 3 4"}) {
    folder_.Write(kLock, said);
    EXPECT_EQ(HolderOfJob(config_, options_).pid, 0) << said;
  }
}

TEST_F(JobLockTest, AHolderInAnotherPidNamespaceHasNoNumberHere) {
  ASSERT_OK_AND_ASSIGN(const FileLock lock, LockJob(config_, options_));
  Say(0, 1);
  const JobHolder holder = HolderOfJob(config_, options_);
  EXPECT_TRUE(holder.elsewhere);
  EXPECT_EQ(holder.pid, 0);
}

}  // namespace
}  // namespace ckptd
