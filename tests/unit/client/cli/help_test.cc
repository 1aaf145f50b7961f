// Help is part of the tool's interface: each text is compared with a file under tests/golden/cli.
// After a wanted change, refresh the files with
//   CKPTD_UPDATE_GOLDEN=1 build/bin/unit_cli --gtest_filter='*Golden*'
// and read the difference.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/unit/client/cli/cli_fixture.h"

namespace ckptd::cli {
namespace {

std::filesystem::path GoldenDir() {
  return std::filesystem::path(CKPTD_SOURCE_DIR) / "tests" / "golden" / "cli";
}

std::string Slurp(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class GoldenHelp : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenHelp, IsTheTextInTheFile) {
  Runner run;
  std::vector<std::string> arguments = {"--help"};
  if (GetParam() != "ckptctl") arguments.insert(arguments.begin(), GetParam());
  const Outcome outcome = run(arguments);
  ASSERT_EQ(outcome.code, kExitFine);
  const std::filesystem::path file = GoldenDir() / ("help-" + GetParam() + ".txt");
  if (std::getenv("CKPTD_UPDATE_GOLDEN") != nullptr) WriteFile(file.string(), outcome.out);
  EXPECT_EQ(outcome.out, Slurp(file)) << file;
}

TEST_P(GoldenHelp, TeachesByAnExample) {
  Runner run;
  const std::string verb = GetParam() == "ckptctl" ? "" : GetParam() + " ";
  std::vector<std::string> arguments = {"--help"};
  if (!verb.empty()) arguments.insert(arguments.begin(), GetParam());
  const std::string help = run(arguments).out;
  EXPECT_NE(help.find("Example"), std::string::npos);
  EXPECT_NE(help.find("ckptctl " + verb.substr(0, verb.size() - (verb.empty() ? 0 : 1))),
            std::string::npos);
}

std::string TestNameOf(const ::testing::TestParamInfo<std::string>& parameter) {
  std::string name = parameter.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Verbs, GoldenHelp,
                         ::testing::Values("ckptctl", "inspect", "plan", "load", "watch", "wait", "list",
                                           "get", "verify", "unload", "pin", "leases", "info",
                                           "trim", "drain", "log-level",
                                           "completion", "version"),
                         TestNameOf);

}  // namespace
}  // namespace ckptd::cli
