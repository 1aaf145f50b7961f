// Bad usage, exit codes, and where answers go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/cli/context.h"
#include "client/cli/exit_codes.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/unit/client/cli/cli_fixture.h"

namespace ckptd::cli {
namespace {

using ::testing::HasSubstr;

TEST(Usage, IsExplainedWhenItIsBad) {
  Runner run;
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {},
           {"bogus"},
           {"plan"},
           {"list", "--bogus"},
           {"load", "/m"},
           {"load", "/m", "--layout", "fsdp:2", "--mode", "mine"},
           {"load", "/m", "--layout", "fsdp:2", "--dtype", "I8"},
           {"plan", "/m", "--layout", ""},
           {"list", "--timeout", "soon"},
           {"list", "--output", "yaml"},
           {"list", "--rank", "-1"},
           {"log-level", "loud"},
           {"drain", "--wait", "0"},
           {"verify", ""}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr("--help`")) << ::testing::PrintToString(arguments);
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(Usage, NamesAVerbThatIsNone) {
  Runner run;
  EXPECT_THAT(run({"bogus"}).err, HasSubstr("`bogus` is no verb"));
}

TEST(Usage, ErrorsAreJsonWhenJsonIsAskedFor) {
  Runner run;
  const Outcome outcome = run({"--output", "json", "plan"});
  EXPECT_EQ(nlohmann::json::parse(outcome.err)["error"]["reason"], "USAGE");
}

TEST(Usage, EnvironmentTwinsAreRead) {
  Runner run;
  const ScopedVariable output("CKPTD_OUTPUT", "json");
  EXPECT_EQ(nlohmann::json::parse(run({"version"}).out)["version"], CKPTD_VERSION);
}

TEST(Usage, OptionsBeatTheirEnvironmentTwins) {
  Runner run;
  const ScopedVariable output("CKPTD_OUTPUT", "json");
  EXPECT_EQ(run({"version", "--output", "table"}).out, "ckptctl " CKPTD_VERSION "\n");
}

TEST(Usage, ABadTwinIsBadUsage) {
  Runner run;
  const ScopedVariable timeout("CKPTD_TIMEOUT", "soon");
  EXPECT_EQ(run({"version"}).code, kExitUsage);
}

TEST(Usage, GlobalOptionsMayStandAnywhere) {
  Runner run;
  EXPECT_EQ(run({"--output", "json", "version"}).out, run({"version", "--output", "json"}).out);
}

TEST(ExitCode, FollowsTheReason) {
  const auto code = [](absl::StatusCode canonical, const char* why) {
    return ExitCodeOf(MakeError(canonical, why, "x"));
  };
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(code(absl::StatusCode::kNotFound, reason::kCheckpointNotFound), 1);
  EXPECT_EQ(code(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable), 3);
  EXPECT_EQ(code(absl::StatusCode::kFailedPrecondition, reason::kNotActive), 4);
  EXPECT_EQ(code(absl::StatusCode::kDeadlineExceeded, reason::kDeadline), 4);
  EXPECT_EQ(code(absl::StatusCode::kDataLoss, reason::kDigestMismatch), 5);
  EXPECT_EQ(code(absl::StatusCode::kUnavailable, reason::kDraining), 1);
}

TEST(ExitCode, TellsThatNoDaemonIsThere) {
  Runner run;
  const Outcome outcome = run({"list", "--address", "/nowhere/rank-0.sock"});
  EXPECT_EQ(outcome.code, kExitUnreachable);
  EXPECT_THAT(outcome.err, HasSubstr("/nowhere/rank-0.sock"));
}

TEST(Durations, HaveUnitsAndBounds) {
  EXPECT_EQ(ParseTimeout("90").value(), std::chrono::seconds(90));
  EXPECT_EQ(ParseTimeout("500ms").value(), std::chrono::milliseconds(500));
  EXPECT_EQ(ParseTimeout("5m").value(), std::chrono::minutes(5));
  EXPECT_EQ(ParseTimeout("24h").value(), std::chrono::hours(24));
  for (const char* text : {"", "0", "25h", "-1", "5x", "m", "1.5s", "99999999999999999999"}) {
    EXPECT_FALSE(ParseTimeout(text).ok()) << text;
  }
}

}  // namespace
}  // namespace ckptd::cli
