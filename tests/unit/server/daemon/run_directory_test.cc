#include "server/daemon/run_directory.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "common/base/reasons.h"
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
