#include "server/daemon/run_directory.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

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
  ASSERT_EQ(::chmod(folder.path().c_str(), 01777), 0);
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

TEST(RunDirectory, HasTheSameModeWhateverTheUmask) {
  for (const mode_t umask : {0000, 0022, 0777}) {
    const TempFolder folder;
    const mode_t before = ::umask(umask);
    const absl::Status made = MakeRunDirectory(folder / "user/run/job");
    ::umask(before);
    ASSERT_OK(made);
    for (const auto& [path, widest] : {std::pair("user", 0755u), {"user/run", 0755u}, {"user/run/job", 0700u}}) {
      struct stat info = {};
      ASSERT_EQ(::stat((folder / path).c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777, (widest & ~umask) | 0700) << path << " under umask " << umask;
    }
  }
}

TEST(RunDirectory, ThatOthersCouldReplaceIsRefused) {
  const TempFolder folder;
  ASSERT_OK(MakeRunDirectory(folder / "run/job"));
  for (const mode_t mode : {0777, 0775}) {
    ASSERT_EQ(::chmod((folder / "run").c_str(), mode), 0);
    for (const char* path : {"run/job", "run/new/job"}) {
      const absl::Status made = MakeRunDirectory(folder / path);
      EXPECT_THAT(made, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid));
      EXPECT_THAT(made, Says("other users may write in " + folder / "run"));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "run/new")) << "nothing is made there";
  ASSERT_EQ(::chmod((folder / "run").c_str(), 01777), 0);
  EXPECT_OK(MakeRunDirectory(folder / "run/job")) << "as in /tmp";
}

TEST(RunDirectory, InAFolderOfAnotherUserIsRefusedToRootAsWell) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give folders away";
  const TempFolder folder;
  ASSERT_OK(MakeRunDirectory(folder / "run/job"));
  ASSERT_EQ(::chown((folder / "run").c_str(), 43'000, 43'000), 0);
  EXPECT_THAT(MakeRunDirectory(folder / "run/job"), Says("run belongs to user 43000"));
  EXPECT_THAT(MakeRunDirectory(folder / "run/other/job"), Says("run belongs to user 43000"));
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
