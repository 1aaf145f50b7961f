#include "server/daemon/arena_default.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/reasons.h"
#include "server/daemon/run_directory.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

struct Rule {
  ArenaFacts facts;
  uint64_t bytes;
  const char* why;
};

class DefaultArenaTest : public ::testing::TestWithParam<Rule> {};

TEST_P(DefaultArenaTest, IsWhatTheJobNeededLastOrAShareOfWhatIsFree) {
  const ArenaSize size = DefaultArena(GetParam().facts);
  EXPECT_EQ(size.bytes, GetParam().bytes);
  EXPECT_THAT(size.why, ::testing::HasSubstr(GetParam().why));
  EXPECT_TRUE(size.automatic);
}

INSTANTIATE_TEST_SUITE_P(
    Machines, DefaultArenaTest,
    ::testing::Values(
        // First run: a quarter, divided among the daemons, and at most 16 GiB on a large host.
        Rule{{16 * kGiB, 12 * kGiB, 1}, 4 * kGiB, "a quarter of the memory that was available"},
        Rule{{16 * kGiB, 3 * kGiB, 4}, kGiB, "divided among 4 daemons"},
        Rule{{64 * kGiB, 50 * kGiB, 1}, 16 * kGiB, "at most 16 GiB"},
        Rule{{2048 * kGiB, 200 * kGiB, 8}, 2 * kGiB, "divided among 8 daemons"},
        Rule{{16 * kGiB, 12 * kGiB, 0}, 4 * kGiB, "divided among 1 daemon;"},
        Rule{{0, 0, 1}, 0, "a quarter"},
        // Limited by the budget.
        Rule{{16 * kGiB, kGiB, 1}, kGiB, "no more than the budget"},
        // Later run: what this rank had, regardless of other daemons.
        Rule{{16 * kGiB, 12 * kGiB, 4, 300 * kMiB}, 300 * kMiB, "when it ran last"},
        Rule{{256 * kGiB, 200 * kGiB, 2, 70 * kGiB}, 70 * kGiB, "when it ran last"},
        Rule{{16 * kGiB, 12 * kGiB, 1, 70 * kGiB}, 12 * kGiB, "no more than the budget"}));

class LoadedBefore : public ::testing::Test {
 protected:
  LoadedBefore() {
    config_.run_dir = folder_ / "run";
    config_.world_size = 4;
    EXPECT_OK(MakeRunDirectory(PathsOf(config_).directory));
  }
  std::string path() const { return PathsOf(config_).arena; }
  void Write(const std::string& text) { std::ofstream(path(), std::ios::binary) << text; }

  const TempFolder folder_;
  Config config_;
};

TEST_F(LoadedBefore, IsNothingAtFirst) { EXPECT_EQ(LastLoaded(config_), std::nullopt); }

TEST_F(LoadedBefore, IsWhatWasRememberedLast) {
  ASSERT_OK(RememberLoaded(config_, 7));
  ASSERT_OK(RememberLoaded(config_, 5 * kGiB));
  EXPECT_EQ(LastLoaded(config_), 5 * kGiB);
  ASSERT_OK_AND_ASSIGN(const ArenaSize size, ChooseArena(config_, 64 * kGiB, 50 * kGiB));
  EXPECT_EQ(size.bytes, 5 * kGiB);
}

TEST_F(LoadedBefore, IsOfOneRankAndOneWorldSize) {
  ASSERT_OK(RememberLoaded(config_, 7));
  Config other = config_;
  other.rank = 1;
  EXPECT_EQ(LastLoaded(other), std::nullopt);
  other.rank = 0;
  other.world_size = 2;
  EXPECT_EQ(LastLoaded(other), std::nullopt);
}

TEST_F(LoadedBefore, IsWrittenForItsOwnerAloneAndWhole) {
  ASSERT_OK(RememberLoaded(config_, 7));
  struct stat info = {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(path() + ".new"));
}

TEST_F(LoadedBefore, ThatCannotBeWrittenIsAnErrorThatNamesTheFile) {
  config_.job = "none";
  const absl::Status failed = RememberLoaded(config_, 7);
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(failed, Says(path()));
}

TEST_F(LoadedBefore, IsNotALinkThatSomebodyPutThere) {
  std::filesystem::create_symlink(folder_ / "elsewhere", path() + ".new");
  EXPECT_FALSE(RememberLoaded(config_, 7).ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "elsewhere"));
}

class ForeignBytes : public LoadedBefore, public ::testing::WithParamInterface<std::string> {};

TEST_P(ForeignBytes, AreNotTakenForASize) {
  Write(GetParam());
  EXPECT_EQ(LastLoaded(config_), std::nullopt);
  ASSERT_OK_AND_ASSIGN(const ArenaSize size, ChooseArena(config_, 16 * kGiB, 12 * kGiB));
  EXPECT_EQ(size.bytes, 4 * kGiB);
}

const std::string kBefore = "ckptd arena 1, world size 4, largest shard ";

INSTANTIATE_TEST_SUITE_P(
    Texts, ForeignBytes,
    ::testing::Values("", "\n", "412345678\n", kBefore, kBefore + "\n", kBefore + "0\n",
                      kBefore + "-5\n", kBefore + " 5\n", kBefore + "5 \n", kBefore + "5",
                      kBefore + "5\n\n", kBefore + "0x10\n", kBefore + "1e9\n",
                      kBefore + "1125899906842625\n", kBefore + "99999999999999999999999\n",
                      "ckptd arena 2, world size 4, largest shard 5\n",
                      std::string(1 << 20, '1'), std::string(40, '\0')));

TEST_F(LoadedBefore, IsNotReadFromAFolderOrAPipe) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  EXPECT_EQ(LastLoaded(config_), std::nullopt);  // returns at once
  std::filesystem::remove(path());
  std::filesystem::create_directory(path());
  EXPECT_EQ(LastLoaded(config_), std::nullopt);
}

TEST(ChooseArena, TakesASizeOrAShareOfTheBudgetAsItIs) {
  Config config;
  config.arena = "25%";
  ASSERT_OK_AND_ASSIGN(const ArenaSize share, ChooseArena(config, 64 * kGiB, 40 * kGiB));
  EXPECT_EQ(share.bytes, 10 * kGiB);
  EXPECT_EQ(share.why, "--arena 25%");
  EXPECT_FALSE(share.automatic);
  config.arena = "0";
  ASSERT_OK_AND_ASSIGN(const ArenaSize none, ChooseArena(config, 64 * kGiB, 40 * kGiB));
  EXPECT_EQ(none.bytes, 0U);
  EXPECT_FALSE(none.automatic);
}

}  // namespace
}  // namespace ckptd
