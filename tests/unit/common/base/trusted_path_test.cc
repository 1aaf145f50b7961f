#include "common/base/trusted_path.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uid_t kOther = 43'000;

class TrustedPath : public testing::Test {
 protected:
  std::string Folder(const std::string& name, mode_t mode = 0755) const {
    std::filesystem::create_directories(top / name);
    EXPECT_EQ(::chmod((top / name).c_str(), mode), 0);
    return top / name;
  }
  void Link(const std::string& name, const std::string& target) const {
    std::filesystem::create_symlink(target, top / name);
  }
  // The reason without the folder of this test; empty: safe.
  std::string Why(const std::string& name) const {
    std::string why = WhyPathIsUnsafe(top / name, {::geteuid()}).value_or("");
    const size_t at = why.find(top.path() + "/");
    return at == std::string::npos ? why : why.erase(at, top.path().size() + 1);
  }
  static void GiveAway(const std::string& path) {
    ASSERT_EQ(::lchown(path.c_str(), kOther, kOther), 0);
  }
  const TempFolder top;
};

TEST_F(TrustedPath, OfRootsAndOwnFoldersIsSafe) {
  Folder("a");
  Folder("a/b", 0700);
  EXPECT_EQ(Why("a/b"), "");
  EXPECT_EQ(Why("a/./b/../b"), "");
  EXPECT_EQ(WhyPathIsUnsafe("/", {}), std::nullopt);
}

TEST_F(TrustedPath, InAFolderThatOthersWriteInIsNot) {
  for (const mode_t mode : {0777, 0775, 0757}) {
    Folder("open/mine");
    Folder("open", mode);
    EXPECT_NE(Why("open/mine").find("other users may write in open (mode 0"), std::string::npos);
    EXPECT_NE(Why("open/mine/../../open/mine"), "") << "nor by a way that comes back";
  }
  Folder("open", 01777);
  EXPECT_EQ(Why("open/mine"), "") << "a sticky one keeps others from replacing what is ours";
}

TEST_F(TrustedPath, ThatBelongsToAnotherUserIsNot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  GiveAway(Folder("theirs"));
  Folder("theirs/mine");
  EXPECT_EQ(Why("theirs/mine"), "theirs belongs to user 43000");
  EXPECT_EQ(WhyPathIsUnsafe(top / "theirs/mine", {kOther}), std::nullopt) << "a user who was named";
  GiveAway(top.Write("socket", ""));
  EXPECT_EQ(Why("socket"), "socket belongs to user 43000") << "the end counts as well";
}

TEST_F(TrustedPath, MayBeWrittenByTheOwnersPrivateGroup) {
  const passwd* const user = ::getpwnam("games");  // its group has its name, and nobody else in it
  if (::geteuid() != 0 || user == nullptr) GTEST_SKIP() << "needs root, and Debian's users";
  const std::string mine = Folder("mine", 0775);
  ASSERT_EQ(::chown(mine.c_str(), user->pw_uid, user->pw_gid), 0);
  EXPECT_EQ(WhyPathIsUnsafe(mine, {user->pw_uid}), std::nullopt);
  ASSERT_EQ(::chmod(mine.c_str(), 0777), 0);
  EXPECT_NE(WhyPathIsUnsafe(mine, {user->pw_uid}), std::nullopt);
  ASSERT_EQ(::chmod(mine.c_str(), 0775), 0);
  ASSERT_EQ(::chown(mine.c_str(), user->pw_uid, kOther), 0);
  EXPECT_NE(WhyPathIsUnsafe(mine, {user->pw_uid}), std::nullopt) << "another group";
}

TEST_F(TrustedPath, IsFollowedThroughLinks) {
  Folder("open/mine");
  Folder("open", 0777);
  Folder("safe");
  Link("to-open", "open/mine");
  Link("to-safe", top / "safe");
  Link("round", "round");
  EXPECT_NE(Why("to-open").find("open (mode"), std::string::npos);
  EXPECT_EQ(Why("to-safe"), "");
  EXPECT_EQ(Why("round"), "round is a link that leads nowhere");
}

TEST_F(TrustedPath, ByALinkOfAnotherUserIsNotSafe) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  Folder("safe");
  Folder("tmp", 01777);
  Link("tmp/theirs", top / "safe");
  GiveAway(top / "tmp/theirs");
  EXPECT_EQ(Why("tmp/theirs"), "tmp/theirs belongs to user 43000");
}

TEST_F(TrustedPath, ThatIsNotThereIsNotSafe) {
  EXPECT_EQ(Why("gone/socket"), "gone cannot be looked at (No such file or directory)");
}

}  // namespace
}  // namespace ckptd
