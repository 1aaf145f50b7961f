// Bad usage, exit codes, and the streams of answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/cli/context.h"
#include "client/cli/exit_codes.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/unit/client/cli/cli_fixture.h"

namespace ckptd::cli {
namespace {

using ::testing::HasSubstr;

// These commands must fail before they look for files or a daemon.
const std::vector<std::vector<std::string>> kBadUsage = {
    {},
    {"bogus"},
    {"--output", "table"},
    {"list", "--bogus"},
    {"list", "extra"},
    {"list", "--timeout", "soon"},
    {"list", "--timeout", "25h"},
    {"list", "--output", "yaml"},
    {"list", "--rank", "-1"},
    {"list", "--rank", "x"},
    {"list", "--address", "ftp://x"},
    {"list", "--address", "unix://"},
    {"list", "--address", "host:99999"},
    {"list", "--address", "unix:///{bogus}/x"},
    {"info", "--address", "ftp://x"},
    {"list", "--job", "a/b"},
    {"list", "--job", "../x"},
    {"plan"},
    {"plan", "/m"},
    {"plan", "/m", "--layout", "fsdp:2", "--dtype", "I8"},
    {"plan", "/m", "--device-map", "auto"},
    {"plan", "/m", "--max-memory", "0=1GB"},
    {"plan", "/m", "--device-map", "best", "--max-memory", "0=1GB"},
    {"plan", "/m", "--device-map", "auto", "--max-memory", "gpu=1GB"},
    {"plan", "/m", "--device-map", "auto", "--max-memory", "gpu=1GB", "--remote"},
    {"plan", "/m", "--layout", "fsdp:2", "--hardware", "abacus"},
    {"plan", "/m", "--device-map", "auto", "--max-memory", "0=1GB", "--layout", "fsdp:2"},
    {"plan", "/m", "--device-map", "auto", "--max-memory", "0=1GB", "--hardware", "h200x8"},
    {"plan", "/m", "--device-map", "auto", "--max-memory", "0=1GB", "--tied", "=a"},
    {"plan", "/m", "--device-map", "auto", "--max-memory", "0=1GB", "--tied", "a"},
    {"load", "/m"},
    {"load", "/m", "--layout", "fsdp:2", "--mode", "mine"},
    {"load", "/m", "--layout", "fsdp:2", "--dtype", "I8"},
    {"load", "/m", "--layout", "fsdp:2", "--digest", "maybe"},
    {"inspect"},
    {"get"},
    {"pin"},
    {"log-level", "loud"},
    {"drain", "--wait", "0"},
    {"completion", "klingon"},
    {"verify", "/m", "--attached"},
    {"verify", "/m", "--manifest", "a", "--write-manifest", "b"},
    {"verify", "checkpoints/1", "--manifest", "a"},
    {"convert", "/m", "b.safetensors", "--to", "torch"},
    {"convert", "/m", "b.safetensors", "--to", "dcp"},
    {"convert", "/m", "b.pt", "--to", "safetensors"},
    {"convert", "/m", "b.gguf"},
    {"convert", "/m", "b.h5", "--to", "torch"},
};

TEST(Usage, IsExplainedWhenItIsBad) {
  Runner run;
  for (const std::vector<std::string>& arguments : kBadUsage) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr("--help`")) << ::testing::PrintToString(arguments);
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(Usage, NamesOfFoldersMayHaveDots) {
  Runner run;
  for (const char* target : {"llama-3.1", "m.fp16", "b.bin/", "b.gguf/", "./m"}) {
    const Outcome outcome = run({"convert", "/nowhere/m", target});
    EXPECT_EQ(outcome.code, kExitFailed) << target;
    EXPECT_THAT(outcome.err, HasSubstr("/nowhere/m")) << target;
  }
}

TEST(Usage, WhatIsGivenEmptyIsBad) {
  Runner run;
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"plan", "", "--layout", "fsdp:2"},
           {"plan", "/m", "--layout", ""},
           {"plan", "/m", "--layout", "fsdp:2", "--dtype", ""},
           {"plan", "/m", "--layout", "fsdp:2", "--keep-fp32", "a", "--keep-fp32", ""},
           {"inspect", ""},
           {"inspect", "/m", "--filter", ""},
           {"load", "", "--layout", "fsdp:2"},
           {"get", ""},
           {"watch", ""},
           {"unload", ""},
           {"pin", ""},
           {"verify", ""},
           {"verify", "/m", "--manifest", ""},
           {"verify", "/m", "--write-manifest", ""},
           {"drain", "--wait", ""},
           {"list", "--address", ""},
           {"--job", "", "list"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, kExitUsage) << ::testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr(" is empty")) << ::testing::PrintToString(arguments);
  }
}

TEST(Usage, ALayoutThatIsNoneIsBad) {
  Runner run;
  for (const char* layout : {"bogus", "fsdp:0", "fsdp:x", "{"}) {
    EXPECT_EQ(run({"plan", "/m", "--layout", layout}).code, kExitUsage) << layout;
  }
}

TEST(Usage, AFileThatIsNotThereIsAFailureAndNoBadUsage) {
  Runner run;
  const Outcome outcome = run({"plan", "/m", "--layout", "@/nowhere.json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_THAT(outcome.err, HasSubstr("/nowhere.json"));
  EXPECT_THAT(outcome.err, HasSubstr("or give fsdp:N"));
  EXPECT_EQ(run({"inspect", "/nowhere.safetensors"}).code, kExitFailed);
}

TEST(Usage, NamesAVerbThatIsNone) {
  Runner run;
  EXPECT_THAT(run({"bogus"}).err, HasSubstr("`bogus` is no verb of ckptctl; see"));
}

TEST(Usage, SaysWhatAMisspeltWordWasMeantToBe) {
  Runner run;
  EXPECT_THAT(run({"isnpect", "/m"}).err, HasSubstr("did you mean inspect?"));
  EXPECT_THAT(run({"verfy"}).err, HasSubstr("did you mean verify?"));
  EXPECT_THAT(run({"load", "/m", "--layout=fsdp:2", "--mod=shared"}).err,
              HasSubstr("did you mean --mode?"));
  EXPECT_THAT(run({"list", "--ouput", "json"}).err, HasSubstr("did you mean --output?"));
}

TEST(Usage, ErrorsAreJsonWhenJsonIsAskedFor) {
  Runner run;
  const Outcome outcome = run({"--output", "json", "plan"});
  EXPECT_EQ(ReasonIn(outcome.err), "USAGE");
}

TEST(Usage, ErrorsOfWhatIsNotUnderstoodAreJsonWhenJsonIsAskedFor) {
  const std::vector<std::vector<std::string>> bad = {{"list", "--timeout", "0s"},
                                                     {"list", "--rank", "abc"},
                                                     {"list", "--bogus"},
                                                     {"bogus"}};
  for (std::vector<std::string> arguments : bad) {
    Runner run;
    {
      const ScopedVariable output("CKPTD_OUTPUT", "json");
      EXPECT_EQ(ReasonIn(run(arguments).err), "USAGE");
    }
    arguments.emplace_back("--output=json");
    EXPECT_EQ(ReasonIn(run(arguments).err), "USAGE");
    arguments.insert(arguments.end() - 1, "--output");
    arguments.back() = "json";
    EXPECT_EQ(ReasonIn(run(arguments).err), "USAGE");
  }
}

TEST(Usage, ErrorsOfTwinsAreJsonWhenJsonIsAskedFor) {
  Runner run;
  const ScopedVariable timeout("CKPTD_TIMEOUT", "abc");
  const Outcome outcome = run({"list", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitUsage);
  EXPECT_EQ(ReasonIn(outcome.err), "USAGE");
}

TEST(Usage, AnOptionBeatsItsTwinAlsoForErrors) {
  Runner run;
  const ScopedVariable output("CKPTD_OUTPUT", "json");
  EXPECT_THAT(run({"list", "--rank", "abc", "--output", "table"}).err,
              ::testing::StartsWith("ckptctl: "));
}

TEST(Usage, AMisspeltOptionIsNamedBeforeTheOneItWasMeantToBe) {
  Runner run;
  EXPECT_THAT(run({"load", "/m", "--layot", "fsdp:2"}).err,
              HasSubstr("not expected: --layot fsdp:2; did you mean --layout?;"));
  EXPECT_THAT(run({"load", "/m"}).err, HasSubstr("--layout is required"));
}

TEST(Usage, UnexpectedWordsComeInTheOrderGiven) {
  Runner run;
  EXPECT_THAT(run({"list", "--adress", "foo", "bar", "--x"}).err,
              HasSubstr("these arguments were not expected: --adress foo bar --x; did you mean --address?"));
}

TEST(Usage, DtypesHaveTheNamesOfFilesAndOfPyTorch) {
  for (const std::string dtype : {"BF16", "bf16", "bfloat16"}) {
    EXPECT_EQ(ToDtypePolicy(dtype, {})->cast_to, Dtype::kBF16) << dtype;
  }
  EXPECT_EQ(ToDtypePolicy("float32", {})->cast_to, Dtype::kF32);
  EXPECT_FALSE(ToDtypePolicy("float8", {}).ok());
}

TEST(Usage, EnvironmentTwinsAreRead) {
  Runner run;
  const ScopedVariable output("CKPTD_OUTPUT", "json");
  EXPECT_EQ(Parsed<VersionOutput>(run({"version"}).out).version(), CKPTD_VERSION);
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

TEST(Usage, AnEnvironmentThatNamesNoDaemonIsBadUsage) {
  for (const auto& [name, value] : {std::pair{"CKPTD_ADDRESS", "ftp://x"},
                                    std::pair{"CKPTD_JOB", "a/b"}, std::pair{"RANK", "first"}}) {
    Runner run;
    const ScopedVariable variable(name, value);
    EXPECT_EQ(run({"list"}).code, kExitUsage) << name;
  }
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
  EXPECT_EQ(code(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid), 2);
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
