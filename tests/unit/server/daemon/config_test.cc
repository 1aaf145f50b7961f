#include "server/daemon/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

EnvironmentReader Variables(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  };
}

class Size : public ::testing::TestWithParam<std::pair<const char*, uint64_t>> {};

TEST_P(Size, IsRead) { EXPECT_EQ(ParseBytes(GetParam().first).value(), GetParam().second); }

INSTANTIATE_TEST_SUITE_P(
    Sizes, Size,
    ::testing::Values(std::pair("0", 0), std::pair("4096", 4096), std::pair("12B", 12),
                      std::pair("800M", 800'000'000), std::pair("2.5 GB", 2'500'000'000),
                      std::pair("256MiB", 268'435'456), std::pair("16gib", 17'179'869'184),
                      std::pair("1KiB", 1024), std::pair("1k", 1000),
                      std::pair("2TiB", 2'199'023'255'552), std::pair("1tb", 1'000'000'000'000)));

class NoSize : public ::testing::TestWithParam<const char*> {};

TEST_P(NoSize, IsRefused) {
  EXPECT_THAT(ParseBytes(GetParam()), FailsWith(kInvalidArgument, reason::kConfigInvalid));
}

INSTANTIATE_TEST_SUITE_P(Sizes, NoSize,
                         ::testing::Values("", "GiB", "-1", "1XB", "nan", "inf", "1e30",
                                           "10000000TB", "0x10", "12 monkeys", "1..5", "80%"));

class Share : public ::testing::TestWithParam<std::pair<const char*, uint64_t>> {};

TEST_P(Share, IsReadAsPartOfAThousand) {
  EXPECT_EQ(ParseShare(GetParam().first, 1000).value(), GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(Shares, Share,
                         ::testing::Values(std::pair("80%", 800), std::pair("100%", 1000),
                                           std::pair("12.5%", 125), std::pair("0", 0),
                                           std::pair("2KiB", 2048)));

class NoShare : public ::testing::TestWithParam<const char*> {};

TEST_P(NoShare, IsRefused) {
  EXPECT_THAT(ParseShare(GetParam(), 1000), FailsWith(kInvalidArgument, reason::kConfigInvalid));
}

INSTANTIATE_TEST_SUITE_P(Shares, NoShare,
                         ::testing::Values("0%", "101%", "-5%", "%", "x%", "5x%", "nan%", "5%%",
                                           ""));

Config Good() { return DefaultConfig(Variables({})); }

TEST(CheckConfig, AcceptsTheDefaults) { EXPECT_OK(CheckConfig(Good())); }

struct Spoiled {
  std::function<void(Config&)> spoil;
  const char* names;  // the flag that the error must name
};

class SpoiledConfig : public ::testing::TestWithParam<Spoiled> {};

TEST_P(SpoiledConfig, IsRefusedByTheNameOfTheFlag) {
  Config config = Good();
  GetParam().spoil(config);
  EXPECT_THAT(CheckConfig(config), FailsWith(kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(CheckConfig(config), Says(GetParam().names));
}

INSTANTIATE_TEST_SUITE_P(
    Flags, SpoiledConfig,
    ::testing::Values(
        Spoiled{[](Config& c) { c.rank = 1; }, "--rank 1"},
        Spoiled{[](Config& c) { c.world_size = 0; }, "--world-size 0"},
        Spoiled{[](Config& c) { c.world_size = 4294967295; }, "--world-size 4294967295"},
        Spoiled{[](Config& c) { c.job = ""; }, "--job"},
        Spoiled{[](Config& c) { c.job = "a\nb"; }, "--job"},
        Spoiled{[](Config& c) { c.job = "a/b"; }, "--job"},
        Spoiled{[](Config& c) { c.job = "a{rank}"; }, "--job"},
        Spoiled{[](Config& c) { c.run_dir = "/run/{local_rank}"; }, "--run-dir"},
        Spoiled{[](Config& c) { c.job = "a\xff"; }, "--job"},
        Spoiled{[](Config& c) { c.run_dir = "/run/\xff"; }, "--run-dir"},
        Spoiled{[](Config& c) { c.run_dir = "/run/\n"; }, "--run-dir"},
        Spoiled{[](Config& c) { c.host_id = "a\xff"; }, "--host-id"},
        Spoiled{[](Config& c) { c.job = ".."; }, "--job"},
        Spoiled{[](Config& c) { c.job = "."; }, "--job"},
        Spoiled{[](Config& c) { c.memory = "gpu"; }, "--memory gpu"},
        Spoiled{[](Config& c) { c.read = "aloud"; }, "--read aloud"},
        Spoiled{[](Config& c) { c.huge_pages = "on"; }, "--huge-pages on"},
        Spoiled{[](Config& c) { c.peer_auth = "maybe"; }, "--peer-auth maybe"},
        Spoiled{[](Config& c) { c.local_size = 0; }, "--local-size"},
        Spoiled{[](Config& c) { c.rendezvous = "host"; }, "--rendezvous host"},
        Spoiled{[](Config& c) { c.rendezvous = ":1"; }, "--rendezvous"},
        Spoiled{[](Config& c) { c.rendezvous = "host:"; }, "--rendezvous"},
        Spoiled{[](Config& c) { c.heartbeat_interval = 0; }, "--heartbeat-interval"},
        Spoiled{[](Config& c) { c.heartbeat_timeout = 1.5; }, "--heartbeat-timeout 1.5"},
        Spoiled{[](Config& c) { c.heartbeat_timeout = 1e9; }, "--heartbeat-timeout"},
        Spoiled{[](Config& c) { c.heartbeat_timeout = std::nan(""); }, "--heartbeat-timeout"},
        Spoiled{[](Config& c) { c.log_level = "loud"; }, "--log-level loud"},
        Spoiled{[](Config& c) { c.segment_bytes = "big"; }, "\"big\""},
        Spoiled{[](Config& c) { c.memory_budget = "120%"; }, "\"120%\""},
        Spoiled{[](Config& c) { c.arena = "some"; }, "\"some\""}));

TEST(DefaultConfig, TakesThePlaceInTheJobFromItsLauncher) {
  const Config config = DefaultConfig(Variables(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node0"}, {"SLURM_JOB_ID", "17"}}));
  EXPECT_EQ(config.rank, 3u);
  EXPECT_EQ(config.world_size, 4u);
  EXPECT_EQ(config.job, "17");
  EXPECT_EQ(config.rendezvous, "node0:29511");
}

TEST(DefaultRunDir, TheOwnVariableWins) {
  EXPECT_EQ(DefaultRunDir(Variables({{"CKPTD_RUN_DIR", "/a"}, {"XDG_RUNTIME_DIR", "/b"}})), "/a");
}

TEST(DefaultRunDir, LiesInTheRuntimeDirectoryOfTheSession) {
  EXPECT_EQ(DefaultRunDir(Variables({{"XDG_RUNTIME_DIR", "/b"}})), "/b/ckptd");
}

TEST(SocketPaths, AreNamedByJobAndRank) {
  Config config = Good();
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

TEST(ConfigFlags, EveryKeyIsAFlagWithItsDefault) {
  Config config = Good();
  CLI::App app;
  AddConfigFlags(app, config);
  for (const auto& [key, value] : Describe(config)) {
    EXPECT_NE(app.get_option_no_throw("--" + key), nullptr) << key;
  }
}

}  // namespace
}  // namespace ckptd
