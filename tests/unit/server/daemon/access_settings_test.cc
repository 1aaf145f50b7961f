#include "server/daemon/access_settings.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

TEST(AccessSettings, ByDefaultThereAreNoGuestsAndNoRoots) {
  ASSERT_OK_AND_ASSIGN(const AccessPolicy policy, ReadAccessPolicy(Config()));
  EXPECT_EQ(policy.own, ::geteuid());
  EXPECT_FALSE(policy.group.has_value());
  EXPECT_TRUE(ReadAllowedRoots(Config()).value().empty());
}

TEST(AccessSettings, UsersAndGroupsAreNamesOrNumbers) {
  Config config;
  config.allow_gid = "root";
  config.allow_uid = "1001,root";
  ASSERT_OK_AND_ASSIGN(AccessPolicy policy, ReadAccessPolicy(config));
  EXPECT_EQ(policy.group, std::optional<gid_t>(0));
  EXPECT_EQ(policy.users, (std::set<uid_t>{0, 1001}));
  config.allow_gid = "2000";
  config.allow_uid = "";
  ASSERT_OK_AND_ASSIGN(policy, ReadAccessPolicy(config));
  EXPECT_EQ(policy.group, std::optional<gid_t>(2000));
  EXPECT_TRUE(policy.users.empty());
}

TEST(AccessSettings, RootsAreFoldersWithoutASlashAtTheirEnd) {
  const TempFolder folder;
  folder.Write("models/a", "bytes");
  Config config;
  config.allow_root = folder / "models/" + "," + folder.path() + "//";
  EXPECT_EQ(ReadAllowedRoots(config).value(),
            (std::vector<std::string>{folder / "models", folder.path()}));
  config.allow_root = "/";
  EXPECT_EQ(ReadAllowedRoots(config).value(), std::vector<std::string>{"/"});
}

}  // namespace
}  // namespace ckptd
