#include "server/daemon/config.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace ckptd {
namespace {

EnvironmentReader Variables(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  };
}

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

TEST(ConfigFlags, EveryKeyIsAFlagWithItsDefault) {
  Config config = DefaultConfig(Variables({}));
  CLI::App app;
  AddConfigFlags(app, config);
  for (const auto& [key, value] : Describe(config)) {
    const CLI::Option* const option = app.get_option_no_throw("--" + key);
    ASSERT_NE(option, nullptr) << key;
    EXPECT_EQ(option->get_default_str(), value) << key;
  }
}

}  // namespace
}  // namespace ckptd
