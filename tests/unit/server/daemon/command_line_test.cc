#include "server/daemon/command_line.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
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

TEST(CommandLine, WhatIsLoadedAtTheStartIsFoundFromAnywhere) {
  const std::string here = std::filesystem::current_path().string();
  for (const auto& [given, meant] : {std::pair{std::string("m"), here + "/m"},
                                     std::pair{std::string("/m"), std::string("/m")}}) {
    const std::string flag = "--load=" + given;
    ASSERT_OK_AND_ASSIGN(const CommandLine line, Parse({"run", flag.c_str()}));
    EXPECT_EQ(line.config.load, meant);
  }
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
  EXPECT_THAT(Parse({}), Says("run, launch, keep, config and info"));
  EXPECT_THAT(Parse({"walk"}), Says("run, launch, keep, config and info"));
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
