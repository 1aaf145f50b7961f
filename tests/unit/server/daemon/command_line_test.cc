#include "server/daemon/command_line.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

using Verb = CommandLine::Verb;

absl::StatusOr<CommandLine> Parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "ckptd");
  return ParseCommandLine(static_cast<int>(arguments.size()), arguments.data());
}

std::string FileWith(const TempFolder& folder, const std::string& text) {
  const std::string path = folder / "ckptd.toml";
  std::ofstream(path) << text;
  return path;
}

// Variables that are set as long as it exists.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, const char*>> variables)
      : variables_(variables) {
    for (const auto& [name, value] : variables_) ::setenv(name, value, 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) ::unsetenv(name);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const std::vector<std::pair<const char*, const char*>> variables_;
};

TEST(CommandLine, LaunchTakesItsNumbersFromAJobFramework) {
  const Environment framework{{"LWS_LEADER_ADDRESS", "llama-0.llama"},
                               {"LWS_GROUP_SIZE", "4"},
                               {"LWS_WORKER_INDEX", "3"},
                               {"PET_NPROC_PER_NODE", "8"}};
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"launch"}));
  EXPECT_EQ(line.launch.nproc, 8u);
  EXPECT_EQ(line.launch.nnodes, 4u);
  EXPECT_EQ(line.launch.node_rank, 3u);
  EXPECT_EQ(line.config.rendezvous, "llama-0.llama:29511");
}

TEST(CommandLine, PodsOfAnIndexedJobAreOneGroupOnlyWhereTheirNumberIsSaid) {
  const Environment job{{"JOB_COMPLETION_INDEX", "3"}};
  ASSERT_OK_AND_ASSIGN(const CommandLine alone, Parse({"launch"}));
  EXPECT_EQ(alone.launch.node_rank, 0u);
  ASSERT_OK_AND_ASSIGN(const CommandLine of_four, Parse({"launch", "--nnodes=4"}));
  EXPECT_EQ(of_four.launch.node_rank, 3u);
}

TEST(CommandLine, LaunchDoesNotGuessWhatOnlyTorchrunCanCount) {
  const Environment kubeflow{{"PET_NPROC_PER_NODE", "gpu"}};
  const auto refused = Parse({"launch"});
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(refused, Says("PET_NPROC_PER_NODE=gpu: it is no number; give --nproc"));
  EXPECT_OK(Parse({"launch", "--nproc=8"}));
  EXPECT_OK(Parse({"run"}));
}

TEST(CommandLine, HelpOfLaunchHasTheVariablesOfEveryFramework) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"launch", "--help"}));
  EXPECT_NE(line.text.find(DescribeFactSources()), std::string::npos) << line.text;
}

TEST(CommandLine, TakesEveryKeyAfterTheVerbToo) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"run", "--rank", "3", "--world-size=8"}));
  EXPECT_EQ(line.verb, Verb::kRun);
  EXPECT_EQ(line.config.rank, 3u);
  EXPECT_EQ(line.config.world_size, 8u);
}

TEST(CommandLine, TellsTheCommandOfLaunchFromItsFlags) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line,
                       Parse({"launch", "--nproc", "2", "--rendezvous=h:1", "--", "python", "-u"}));
  EXPECT_EQ(line.verb, Verb::kLaunch);
  EXPECT_EQ(line.launch.nproc, 2u);
  EXPECT_TRUE(line.launch.rendezvous_given);
  EXPECT_EQ(line.launch.command, (std::vector<std::string>{"python", "-u"}));
}

TEST(CommandLine, LingersForSecondsMinutesOrHours) {
  for (const auto& [text, seconds] : {std::pair{"90", 90.0}, {"90s", 90.0}, {"1.5m", 90.0}, {"2h", 7200.0}}) {
    ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"launch", "--detach", "--linger", text}));
    EXPECT_TRUE(line.launch.detach);
    EXPECT_EQ(line.launch.linger, seconds) << text;
    ASSERT_OK_AND_ASSIGN(const CommandLine keep, Parse({"keep", "--linger", text}));
    EXPECT_EQ(keep.keep.linger, seconds) << text;
  }
  EXPECT_THAT(Parse({"launch", "--linger", "2 weeks"}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST(CommandLine, WhatIsLoadedAtTheStartIsFoundFromAnywhere) {
  const std::string here = std::filesystem::current_path().string();
  for (const auto& [given, meant] : {std::pair{std::string("m"), here + "/m"},
                                     std::pair{std::string("/m"), std::string("/m")}}) {
    const std::string flag = "--load=" + given;
    ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"run", flag.c_str()}));
    EXPECT_EQ(line.config.load, meant);
  }
}

TEST(CommandLine, ListsAreGivenAtOnceOrOneByOne) {
  ASSERT_OK_AND_ASSIGN(CommandLine line, Parse({"run", "--allow-root=/a", "--allow-root", "/b,/c"}));
  EXPECT_EQ(line.config.allow_root, "/a,/b,/c");
  const TempFolder folder;
  const std::string file = FileWith(folder, "allow-root = [\"/a\", \"/b\"]\nallow-uid = \"1,2\"\n");
  ASSERT_OK_AND_ASSIGN(line, Parse({"--config", file.c_str(), "run"}));
  EXPECT_EQ(line.config.allow_root, "/a,/b");
  EXPECT_EQ(line.config.allow_uid, "1,2");
}

TEST(CommandLine, LetsFlagsWinOverTheFile) {
  const TempFolder folder;
  const std::string file = FileWith(folder, "job = \"filed\"\nlog-level = \"debug\"\n");
  ASSERT_OK_AND_ASSIGN(const CommandLine line,
                       Parse({"--config", file.c_str(), "config", "--job=flagged"}));
  EXPECT_EQ(line.config.job, "flagged");
  EXPECT_EQ(line.config.log_level, "debug");
}

TEST(CommandLine, NamesTheKeyThatTheFileMisspells) {
  const TempFolder folder;
  const std::string file = FileWith(folder, "loglevel = \"debug\"\n");
  const auto line = Parse({"--config", file.c_str(), "run"});
  EXPECT_THAT(line, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(line, Says("no key \"loglevel\""));
}

TEST(CommandLine, ReadsNoDeviceAsItsFile) {
  const auto line = Parse({"--config", "/dev/zero", "run"});
  EXPECT_THAT(line, FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
  EXPECT_THAT(line, Says("not a regular file"));
}

TEST(CommandLine, RefusesAFileThatIsTooLong) {
  const TempFolder folder;
  const std::string file = FileWith(folder, std::string((1 << 20) + 1, '\n'));
  EXPECT_THAT(Parse({"--config", file.c_str(), "run"}), Says("more than the 1048576 allowed"));
}

TEST(CommandLine, MakesTheRunDirectoryAbsolute) {
  ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"run", "--run-dir", "x/../y"}));
  EXPECT_EQ(line.config.run_dir, (std::filesystem::current_path() / "y").string());
}

TEST(CommandLine, RefusesAnEmptyRunDirectory) {
  EXPECT_THAT(Parse({"run", "--run-dir="}),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST(CommandLine, SaysWhichCommandsThereAre) {
  EXPECT_THAT(Parse({}), Says("run, launch, stop, keep, config and info"));
  EXPECT_THAT(Parse({"walk"}), Says("run, launch, stop, keep, config and info"));
}

TEST(CommandLine, PrintsHelpAndVersion) {
  ASSERT_OK_AND_ASSIGN(const CommandLine help, Parse({"launch", "--help"}));
  EXPECT_EQ(help.verb, Verb::kPrint);
  EXPECT_NE(help.text.find("--max-restarts"), std::string::npos);
  ASSERT_OK_AND_ASSIGN(const CommandLine version, Parse({"--version"}));
  EXPECT_EQ(version.text, "ckptd " CKPTD_VERSION "\n");
}

TEST(CommandLine, LaunchTakesNoRankOrSizeOfADaemon) {
  for (const char* key : {"--rank=0", "--world-size=4", "--local-size=4"}) {
    EXPECT_THAT(Parse({"launch", "--nproc=4", key}), Says("give --nproc, --nnodes and --node-rank"));
    EXPECT_OK(Parse({"run", key}));
  }
}

TEST(CommandLine, AParserForgetsWhatItParsedBefore) {
  CommandLineParser parser;
  const char* first[] = {"ckptd", "launch", "--job=j", "--nproc=3", "--", "python"};
  const char* second[] = {"ckptd", "run"};
  ASSERT_OK(parser.Parse(6, first));
  ASSERT_OK_AND_ASSIGN(const CommandLine line, parser.Parse(2, second));
  ASSERT_OK_AND_ASSIGN(const CommandLine fresh, Parse({"run"}));
  EXPECT_EQ(line.verb, Verb::kRun);
  EXPECT_EQ(Describe(line.config), Describe(fresh.config));
  EXPECT_EQ(line.launch.nproc, fresh.launch.nproc);
  EXPECT_TRUE(line.launch.command.empty());
}

}  // namespace
}  // namespace ckptd
