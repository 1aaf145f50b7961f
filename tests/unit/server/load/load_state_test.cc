#include "server/load/load_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using enum LoadState;

constexpr std::array<LoadState, kLoadStates> kAll = {
    kGathering,    kWaitingForMemory, kQueued, kOpening, kPlanning, kAllocating,
    kTransferring, kPublishing,       kActive, kFailed,  kCancelled};

TEST(LoadState, EveryStateMayBeFollowedByTheseAndByNoOther) {
  std::string table;
  for (const LoadState from : kAll) {
    table += std::string(NameOf(from)) + ":";
    for (const LoadState to : kAll) {
      if (IsLegal(from, to)) table += " " + std::string(NameOf(to));
    }
    table += "\n";
  }
  EXPECT_EQ(table,
            "GATHERING: QUEUED FAILED CANCELLED\n"
            "WAITING_FOR_MEMORY: GATHERING FAILED CANCELLED\n"
            "QUEUED: GATHERING OPENING FAILED CANCELLED\n"
            "OPENING: PLANNING FAILED CANCELLED\n"
            "PLANNING: ALLOCATING FAILED CANCELLED\n"
            "ALLOCATING: WAITING_FOR_MEMORY TRANSFERRING PUBLISHING FAILED CANCELLED\n"
            "TRANSFERRING: PUBLISHING FAILED CANCELLED\n"
            "PUBLISHING: ACTIVE FAILED\n"
            "ACTIVE:\n"
            "FAILED:\n"
            "CANCELLED:\n");
}

TEST(LoadState, OnlyStatesWithoutFollowersAreFinalAndClientsSeeNoStageInThem) {
  for (const LoadState state : kAll) {
    const bool final = state == kActive || state == kFailed || state == kCancelled;
    EXPECT_EQ(IsFinal(state), final) << NameOf(state);
    EXPECT_EQ(StageOf(state) == Stage::kUnspecified, final) << NameOf(state);
  }
}

TEST(LoadStateMachine, RefusesEveryStepThatTheTableDoesNotHave) {
  for (const LoadState from : kAll) {
    for (const LoadState to : kAll) {
      LoadStateMachine machine(from);
      const absl::Status status = machine.Advance(to);
      if (from == kCancelled) continue;  // it tells why it was cancelled
      if (IsLegal(from, to)) {
        EXPECT_OK(status) << NameOf(from) << " to " << NameOf(to);
        EXPECT_EQ(machine.state(), to);
      } else {
        EXPECT_THAT(status, FailsWith(absl::StatusCode::kInternal, reason::kIllegalState));
        EXPECT_THAT(status, Says(std::string(NameOf(from))));
        EXPECT_EQ(machine.state(), from);
      }
    }
  }
}

TEST(LoadStateMachine, ACancelledLoadTellsItsRunnerWhyAtTheNextStep) {
  LoadStateMachine machine(kPlanning);
  EXPECT_EQ(machine.Cancel(absl::AbortedError("not wanted")), kPlanning);
  EXPECT_EQ(machine.Advance(kAllocating), absl::AbortedError("not wanted"));
  machine.Fail();
  EXPECT_EQ(machine.state(), kCancelled);
  EXPECT_EQ(machine.Cancel(absl::AbortedError("again")), std::nullopt);
  EXPECT_EQ(machine.cancelled(), absl::AbortedError("not wanted"));
}

TEST(LoadStateMachine, ALoadThatIsPublishedIsNotCancelled) {
  LoadStateMachine machine(kPublishing);
  EXPECT_EQ(machine.Cancel(absl::AbortedError("too late")), std::nullopt);
  EXPECT_OK(machine.Advance(kActive));
}

TEST(LoadStateMachine, HasARunnerFromTakeToRequeueAlsoWhenItIsCancelledInBetween) {
  LoadStateMachine machine;
  EXPECT_FALSE(machine.has_runner());
  EXPECT_TRUE(machine.Take());
  machine.Cancel(absl::AbortedError("not wanted"));
  EXPECT_TRUE(machine.has_runner());
  machine.Requeue(kGathering);
  EXPECT_FALSE(machine.has_runner());
  EXPECT_EQ(machine.state(), kCancelled);
  EXPECT_FALSE(machine.Take());
}

TEST(LoadStateMachine, TellsOfWhatTheRunnerChanges) {
  std::vector<LoadState> seen;
  LoadStateMachine* self = nullptr;
  LoadStateMachine machine(kQueued, [&] { seen.push_back(self->state()); });
  self = &machine;
  EXPECT_OK(machine.Advance(kOpening));
  EXPECT_FALSE(machine.Advance(kPublishing).ok());
  machine.Fail();
  machine.Fail();
  EXPECT_THAT(seen, ::testing::ElementsAre(kOpening, kFailed));
}

}  // namespace
}  // namespace ckptd
