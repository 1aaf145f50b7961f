#include "client/cpp/address.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Environment Variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto at = values.find(name);
    if (at == values.end()) return std::nullopt;
    return at->second;
  };
}

std::string PathOf(const AddressQuery& query, std::map<std::string, std::string> values) {
  const auto address = ResolveAddress(query, Variables(std::move(values)));
  EXPECT_OK(address);
  return address.ok() ? address->path : "";
}

TEST(Address, TakesTheArgumentBeforeTheEnvironment) {
  EXPECT_EQ(PathOf({.argument = "/a.sock"}, {{"CKPTD_ADDRESS", "/b.sock"}}), "/a.sock");
}

TEST(Address, TakesTheEnvironmentBeforeTheDefault) {
  EXPECT_EQ(PathOf({}, {{"CKPTD_ADDRESS", "unix:///b.sock"}, {"CKPTD_RUN_DIR", "/run/x"}}),
            "/b.sock");
}

TEST(Address, ReadsEverySpellingOfAUnixSocket) {
  for (const char* text : {"/x/y.sock", "unix:/x/y.sock", "unix:///x/y.sock"}) {
    EXPECT_EQ(PathOf({.argument = text}, {}), "/x/y.sock") << text;
  }
}

TEST(Address, IsDialledEncodedAndShownAsItWasWritten) {
  ASSERT_OK_AND_ASSIGN(const Address address,
                       ResolveAddress({.argument = "unix:///x/a%62?c.sock"}, Variables({})));
  EXPECT_EQ(address.target, "unix:/x/a%2562%3Fc.sock");
  EXPECT_EQ(address.Shown(), "unix:/x/a%62?c.sock");
  ASSERT_OK_AND_ASSIGN(const Address again,
                       ResolveAddress({.argument = address.Shown()}, Variables({})));
  EXPECT_EQ(again.path, address.path);
  EXPECT_EQ(AdminAddress(Address(address)).Shown().find("%25"), std::string::npos);
}

TEST(Address, FillsInTheRanksOfTorchrun) {
  EXPECT_EQ(PathOf({.argument = "/r{rank}/l{local_rank}.sock"},
                   {{"RANK", "11"}, {"LOCAL_RANK", "3"}, {"SLURM_PROCID", "7"}}),
            "/r11/l3.sock");
}

TEST(Address, FillsInTheRanksOfSlurmWhereTorchrunSaysNothing) {
  EXPECT_EQ(PathOf({.argument = "/r{rank}/l{local_rank}.sock"},
                   {{"SLURM_PROCID", "7"}, {"SLURM_LOCALID", "1"}}),
            "/r7/l1.sock");
}

TEST(Address, IsThatOfRankZeroWithoutAnyLauncher) {
  EXPECT_EQ(PathOf({}, {{"CKPTD_RUN_DIR", "/d"}}), "/d/default/rank-0.sock");
}

TEST(Address, PrefersTheRankThatWasAskedFor) {
  EXPECT_EQ(PathOf({.rank = 5}, {{"CKPTD_RUN_DIR", "/d"}, {"RANK", "2"}}), "/d/default/rank-5.sock");
}

TEST(Address, NamesTheJobsFolder) {
  EXPECT_EQ(PathOf({}, {{"CKPTD_RUN_DIR", "/d"}, {"CKPTD_JOB", "night"}}), "/d/night/rank-0.sock");
  EXPECT_EQ(PathOf({.job = "day"}, {{"CKPTD_RUN_DIR", "/d"}, {"CKPTD_JOB", "night"}}),
            "/d/day/rank-0.sock");
}

TEST(Address, NamesTheFolderOfASlurmJobThatHasNoOtherName) {
  EXPECT_EQ(PathOf({}, {{"CKPTD_RUN_DIR", "/d"}, {"SLURM_JOB_ID", "815"}}),
            "/d/815/rank-0.sock");
  EXPECT_EQ(PathOf({}, {{"CKPTD_RUN_DIR", "/d"}, {"SLURM_JOB_ID", "815"}, {"CKPTD_JOB", "day"}}),
            "/d/day/rank-0.sock");
}

TEST(Address, UsesTheSessionsRunFolder) {
  EXPECT_EQ(PathOf({}, {{"XDG_RUNTIME_DIR", "/run/user/7"}}),
            "/run/user/7/ckptd/default/rank-0.sock");
}

TEST(Address, FallsBackToTheSystemsOrTheUsersFolder) {
  const std::string expected =
      geteuid() == 0 ? "/run/ckptd/default/rank-0.sock" : "/home/u/.ckptd/run/default/rank-0.sock";
  EXPECT_EQ(PathOf({}, {{"HOME", "/home/u"}}), expected);
}

TEST(Address, RefusesAJobThatLeavesTheFolder) {
  EXPECT_THAT(ResolveAddress({.job = "../x"}, Variables({{"CKPTD_RUN_DIR", "/d"}})),
              FailsWith(kInvalid, reason::kInvalidRequest));
}

TEST(Address, RefusesARankThatIsNoNumber) {
  EXPECT_THAT(ResolveAddress({}, Variables({{"CKPTD_RUN_DIR", "/d"}, {"RANK", "1x"}})),
              Says("RANK=1x"));
}

TEST(Address, RefusesAnUnknownPlaceholder) {
  EXPECT_THAT(ResolveAddress({.argument = "/x-{host}.sock"}, Variables({})), Says("{host}"));
}

TEST(Address, RefusesARelativeSocket) {
  EXPECT_THAT(ResolveAddress({.argument = "unix:x.sock"}, Variables({})),
              FailsWith(kInvalid, reason::kInvalidRequest));
}

TEST(Address, RefusesAPathThatNoSocketCanHave) {
  const std::string fits = "/" + std::string(106, 'x');
  EXPECT_OK(ResolveAddress({.argument = fits}, Variables({})));
  EXPECT_THAT(ResolveAddress({.argument = fits + "x"}, Variables({})), Says("CKPTD_RUN_DIR"));
}

TEST(Address, ReadsHostAndPort) {
  ASSERT_OK_AND_ASSIGN(const Address address,
                       ResolveAddress({.argument = "node7:7070"}, Variables({})));
  EXPECT_EQ(address.target, "node7:7070");
  EXPECT_TRUE(address.path.empty());
}

TEST(Address, RefusesAPortThatIsNone) {
  for (const char* text : {"node7", "node7:", "node7:0", "node7:70707", ":7070", "node7:1x"}) {
    EXPECT_THAT(ResolveAddress({.argument = text}, Variables({})),
                FailsWith(kInvalid, reason::kInvalidRequest))
        << text;
  }
}

TEST(Address, SaysHowItWasChosen) {
  ASSERT_OK_AND_ASSIGN(const Address address,
                       ResolveAddress({}, Variables({{"CKPTD_ADDRESS", "/b.sock"}})));
  EXPECT_EQ(address.chosen_by, "CKPTD_ADDRESS");
}

TEST(Address, KnowsBothSocketsOfADaemon) {
  ASSERT_OK_AND_ASSIGN(const Address address,
                       ResolveAddress({.argument = "/d/rank-3.sock"}, Variables({})));
  EXPECT_EQ(AdminAddress(address).path, "/d/rank-3.admin.sock");
  EXPECT_EQ(AdminAddress(AdminAddress(address)).path, "/d/rank-3.admin.sock");
  EXPECT_EQ(WorkloadAddress(AdminAddress(address)).target, "unix:/d/rank-3.sock");
}

}  // namespace
}  // namespace ckptd
