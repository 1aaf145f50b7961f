// `ckptctl wait` against a fake daemon.
#include <gmock/gmock.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "tests/unit/client/cli/cli_fixture.h"
#include "tests/unit/client/fake_daemon.h"

namespace ckptd::cli {
namespace {

using fake::FakeDaemon;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kActive = v1::Checkpoint::STATE_ACTIVE;
constexpr auto kLoading = v1::Checkpoint::STATE_LOADING;

class WaitTest : public ::testing::Test {
 protected:
  WaitTest() { SetState("READY", ""); }

  void SetState(const std::string& state, const std::string& detail) {
    daemon_.answers.info.set_state(state);
    daemon_.answers.info.set_detail(detail);
    daemon_.answers.info.set_world_size(2);
  }
  Outcome Wait(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "wait");
    arguments.insert(arguments.end(), {"--address", daemon_.socket()});
    return run_(arguments);
  }

  FakeDaemon daemon_;
  Runner run_;
};

TEST_F(WaitTest, ACompleteGroupIsThereAtOnce) {
  daemon_.Start();
  const Outcome outcome = Wait({});
  EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("the group of 2 is complete"));
  EXPECT_EQ(Wait({"--quiet"}).out, "");
}

TEST_F(WaitTest, ADaemonThatStartsLaterIsWaitedForAndThatIsSaid) {
  std::ostringstream out;
  std::ostringstream err;
  Io io{out, err};
  bool started = false;
  io.now = [this, &started] {  // asked for when something is shown for the first time
    if (!std::exchange(started, true)) daemon_.Start();
    return TimePoint();
  };
  EXPECT_EQ(RunCli({"wait", "--timeout", "60s", "--address", daemon_.socket()}, io), kExitFine) << err.str();
  EXPECT_EQ(err.str(), "no daemon answers yet\n");
}

TEST_F(WaitTest, NoDaemonInTimeIsUnreachable) {
  const Outcome outcome = Wait({"--timeout", "300ms"});
  EXPECT_EQ(outcome.code, kExitUnreachable);
  EXPECT_THAT(outcome.err, HasSubstr("waiting for the group: not within 300 ms: connecting to the daemon at"));
}

TEST_F(WaitTest, AnotherUserIsToldWhyAndDoesNotWaitForTheGroup) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can act as another user";
  Outcome group;
  Outcome active;
  std::thread([&] {
    // This system call changes this thread only. The folder of the socket is closed to that user.
    ASSERT_EQ(::syscall(SYS_setresuid, -1, 43'210, -1), 0);
    group = Wait({"--timeout", "10m"});
    active = Wait({"--for", "active=/models/tiny", "--timeout", "300ms"});
  }).join();
  EXPECT_NE(group.code, kExitFine);
  EXPECT_THAT(group.err, HasSubstr("--for active=NAME"));
  EXPECT_THAT(group.err, HasSubstr("in the group that the daemon's --allow-gid names"));
  EXPECT_EQ(active.code, group.code);
  EXPECT_THAT(active.err, HasSubstr("not within 300 ms: connecting to the daemon at"));
  EXPECT_THAT(active.err, Not(HasSubstr("no daemon answers yet"))) << "its daemons may run";
}

TEST_F(WaitTest, AGroupThatStaysIncompleteNamesWhomItWaitsFor) {
  SetState("JOINING", "waiting for rank 1");
  daemon_.Start();
  const Outcome outcome = Wait({"--timeout", "2s"});
  EXPECT_EQ(outcome.code, kExitNotReady);
  EXPECT_THAT(outcome.err, HasSubstr("the group is not complete: waiting for rank 1\n"));
  EXPECT_THAT(outcome.err, HasSubstr("not within 2.0 s: the group is not complete: waiting for rank 1; look at"));
  EXPECT_EQ(ReasonIn(Wait({"--timeout", "2s", "--quiet", "--output", "json"}).err), reason::kDeadline);
}

TEST_F(WaitTest, AnAnswerIsNotForgottenForAnAttemptThatTheEndCutsShort) {
  SetState("JOINING", "waiting for rank 1");
  daemon_.Start();
  std::ostringstream out;
  std::ostringstream err;
  Io io{out, err};
  bool stopped = false;
  io.now = [this, &stopped] {  // asked for when something is shown for the first time
    if (!std::exchange(stopped, true)) daemon_.Stop();
    return TimePoint();
  };
  EXPECT_EQ(RunCli({"wait", "--timeout", "1900ms", "--address", daemon_.socket()}, io), kExitNotReady);
  EXPECT_THAT(err.str(), HasSubstr("not within 1.9 s: the group is not complete: waiting for rank 1;"));
}

TEST_F(WaitTest, ATerminalShowsOneLineThatGoesAway) {
  SetState("JOINING", "waiting for rank 1");
  daemon_.Start();
  run_.terminal = true;
  EXPECT_THAT(Wait({"--timeout", "2s"}).err,
              HasSubstr("\rthe group is not complete: waiting for rank 1\x1b[K"));
}

TEST_F(WaitTest, ADaemonThatDrainsIsNotWaitedFor) {
  SetState("DRAINING", "");
  daemon_.Start();
  const Outcome outcome = Wait({"--timeout", "60s", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_EQ(ReasonIn(outcome.err), reason::kDraining);
}

TEST_F(WaitTest, JsonSaysWhatWasWaitedFor) {
  daemon_.answers.list = {FakeDaemon::MakeCheckpoint(kActive)};
  daemon_.Start();
  const auto group = Parsed<WaitOutput>(Wait({"--output", "json"}).out);
  EXPECT_EQ(group.condition(), "group");
  EXPECT_EQ(group.world_size(), 2);
  EXPECT_FALSE(group.has_checkpoint());
  const auto active = Parsed<WaitOutput>(Wait({"--for", "active=/models/tiny", "--output", "json"}).out);
  EXPECT_EQ(active.condition(), "active");
  EXPECT_EQ(active.checkpoint().name(), "checkpoints/ab12");
}

TEST_F(WaitTest, ACheckpointIsMeantByNameIdOrTheSourceOfTheNewestLoad) {
  v1::Checkpoint older = FakeDaemon::MakeCheckpoint(v1::Checkpoint::STATE_FAILED);
  older.set_name("checkpoints/older");
  daemon_.answers.list = {FakeDaemon::MakeCheckpoint(kActive), older};
  daemon_.Start();
  for (const char* name : {"active=ab12", "active=checkpoints/ab12", "active=/models/tiny", "active=/models/tiny/"}) {
    const Outcome outcome = Wait({"--for", name});
    EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
    EXPECT_THAT(outcome.out, HasSubstr("checkpoints/ab12 is ACTIVE: rank 0 of 2 holds 1.5 GB"));
  }
}

TEST_F(WaitTest, ALoadIsFollowedToItsEnd) {
  v1::Checkpoint loading = FakeDaemon::MakeCheckpoint(kLoading);
  loading.mutable_progress()->set_stage(v1::STAGE_TRANSFERRING);
  loading.mutable_progress()->set_bytes_total(1000);
  loading.mutable_progress()->set_bytes_done(250);
  daemon_.answers.list = {loading};
  daemon_.answers.watch = {loading, FakeDaemon::MakeCheckpoint(kActive)};
  daemon_.Start();
  const Outcome outcome = Wait({"--for", "active=/models/tiny"});
  EXPECT_EQ(outcome.code, kExitFine) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("TRANSFERRING  25%"));
}

TEST_F(WaitTest, ALoadThatFailsEndsTheWaitingWithItsOwnError) {
  v1::Checkpoint failed = FakeDaemon::MakeCheckpoint(v1::Checkpoint::STATE_FAILED);
  failed.mutable_failure()->set_code(5);
  failed.mutable_failure()->set_reason("SOURCE_NOT_FOUND");
  failed.mutable_failure()->set_message("opening /models/tiny: there is no such file");
  daemon_.answers.list = {failed};
  daemon_.Start();
  const Outcome outcome = Wait({"--for", "active=/models/tiny", "--timeout", "60s", "--output", "json"});
  EXPECT_EQ(outcome.code, kExitFailed);
  EXPECT_EQ(ReasonIn(outcome.err), "SOURCE_NOT_FOUND");
}

TEST_F(WaitTest, ALoadThatHasNotBegunIsWaitedFor) {
  daemon_.Start();
  const Outcome outcome = Wait({"--for", "active=/models/tiny", "--timeout", "2s"});
  EXPECT_EQ(outcome.code, kExitNotReady);
  EXPECT_THAT(outcome.err, HasSubstr("there is no load of /models/tiny yet"));
}

TEST_F(WaitTest, AConditionThatIsNoneIsAMistake) {
  for (const char* condition : {"ready", "active", "active=", "group=1"}) {
    const Outcome outcome = Wait({"--for", condition});
    EXPECT_EQ(outcome.code, kExitUsage) << condition;
    EXPECT_THAT(outcome.err, HasSubstr("expected group, or active=NAME"));
  }
}

TEST_F(WaitTest, CtrlCEndsIt) {
  SetState("JOINING", "waiting for rank 1");
  daemon_.Start();
  run_.interrupt.Cancel();
  EXPECT_EQ(Wait({"--timeout", "60s"}).code, kExitInterrupted);
}

}  // namespace
}  // namespace ckptd::cli
