#include "server/daemon/run_directory.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

TEST(SocketPaths, AreNamedByJobAndRank) {
  Config config;
  config.run_dir = "/run/ckptd";
  config.job = "job";
  config.rank = 3;
  const SocketPaths paths = PathsOf(config);
  EXPECT_EQ(paths.directory, "/run/ckptd/job");
  EXPECT_EQ(paths.workload, "/run/ckptd/job/rank-3.sock");
  EXPECT_EQ(paths.admin, "/run/ckptd/job/rank-3.admin.sock");
}

TEST(RunDirectory, IsMadeForItsOwnerAlone) {
  const TempFolder folder;
  const std::string path = folder / "ckptd/job";
  ASSERT_OK(MakeRunDirectory(path));
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(RunDirectory, IsUsedAgain) {
  const TempFolder folder;
  ASSERT_OK(MakeRunDirectory(folder / "job"));
  EXPECT_OK(MakeRunDirectory(folder / "job"));
}

TEST(RunDirectory, ThatOthersMayEnterIsRefused) {
  const TempFolder folder;
  const std::string path = folder / "job";
  ASSERT_OK(MakeRunDirectory(path));
  ASSERT_EQ(::chmod(path.c_str(), 0710), 0);
  EXPECT_THAT(MakeRunDirectory(path),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
}

TEST(RunDirectory, IsGivenToTheGroupThatMayAttach) {
  const TempFolder folder;
  const std::string path = folder / "job";
  ASSERT_OK(MakeRunDirectory(path));
  const gid_t group = ::geteuid() == 0 ? 43'000 : ::getegid();
  ASSERT_OK(MakeRunDirectory(path, group)) << "one of an earlier daemon";
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0750u);
  EXPECT_EQ(info.st_gid, group);
  EXPECT_OK(MakeRunDirectory(path, group));
  EXPECT_THAT(MakeRunDirectory(path), Says("mode 0700")) << "a daemon that is for its user alone";
}

TEST(RunDirectory, OfAGroupThatTheDaemonIsNotInIsRefused) {
  const TempFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0777), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setresgid(65534, 65534, 65534) != 0 ||
                             ::setresuid(65534, 65534, 65534) != 0)) {
      ::_exit(3);
    }
    const absl::Status made = MakeRunDirectory(folder / "job", 43'000);
    const bool refused = ReasonOf(made) == reason::kConfigInvalid &&
                         MessageOf(made).find("to group 43000: Operation not permitted; make this "
                                              "daemon's user a member") != std::string::npos;
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RunDirectory, ThatIsALinkIsRefused) {
  const TempFolder folder;
  ASSERT_OK(MakeRunDirectory(folder / "real"));
  std::filesystem::create_directory_symlink(folder / "real", folder / "job");
  EXPECT_THAT(MakeRunDirectory(folder / "job"),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
}

TEST(RunDirectory, ThatIsAFileIsRefused) {
  const TempFolder folder;
  folder.Write("job", "x");
  EXPECT_THAT(MakeRunDirectory(folder / "job"),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
}

}  // namespace
}  // namespace ckptd
