#include "server/group/local_participants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"
#include "tests/testing/core_values.h"

namespace ckptd {
namespace {

using State = Participant::State;

class LocalParticipantsTest : public ::testing::Test {
 protected:
  absl::Status Join(const std::string& id, bool barrier = false) {
    Participant participant;
    participant.id = id;
    participant.source = "/m";
    participant.pid = 7;
    participant.barrier = barrier;
    return local_.Join(participant, [this](const absl::Status& s) { answers_.push_back(s); }, now_);
  }
  // One heartbeat.
  void Tell(const std::vector<Verdict>& verdicts = {}) {
    local_.NoteDelivered(local_.Snapshot(now_), verdicts);
  }
  State StateOf(size_t i) { return local_.Snapshot(now_).at(i).state; }

  const Clock::time_point now_ = Clock::now();
  int changes_ = 0;
  LocalParticipants local_{[this] { ++changes_; }};
  std::vector<absl::Status> answers_;
};

TEST_F(LocalParticipantsTest, OneThatHasPlacedIsAnsweredAtOnceAndGoesWhenTheLeaderKnows) {
  ASSERT_TRUE(Join("a").ok());
  local_.Leave("a", absl::OkStatus(), Soon());
  EXPECT_THAT(answers_, ::testing::ElementsAre(absl::OkStatus()));
  EXPECT_EQ(StateOf(0), State::kPlaced);
  Tell();
  EXPECT_TRUE(local_.Empty());
  EXPECT_EQ(changes_, 2);
}

TEST_F(LocalParticipantsTest, AnOutcomeThatComesLongBeforeItsJoinCounts) {
  local_.Leave("placed", absl::OkStatus(), Clock::now());
  local_.Leave("failed", absl::AbortedError("a mistake"), Clock::now());
  ASSERT_TRUE(Join("placed").ok());
  ASSERT_TRUE(Join("failed").ok());
  local_.Lost("placed");  // its call ends, as it has left
  EXPECT_THAT(answers_, ::testing::ElementsAre(absl::OkStatus(), absl::AbortedError("a mistake")));
  EXPECT_EQ(StateOf(0), State::kPlaced);
  EXPECT_EQ(StateOf(1), State::kFailed);
}

TEST_F(LocalParticipantsTest, WithABarrierTheLeaderAnswers) {
  ASSERT_TRUE(Join("a", true).ok());
  local_.Leave("a", absl::OkStatus(), Soon());
  Tell();
  EXPECT_TRUE(answers_.empty());
  Tell({{"a", absl::OkStatus()}, {"unknown", absl::OkStatus()}});
  EXPECT_THAT(answers_, ::testing::ElementsAre(absl::OkStatus()));
  EXPECT_TRUE(local_.Empty());
}

TEST_F(LocalParticipantsTest, BarriersEndWithTheLeaderThatKnewOfThem) {
  ASSERT_TRUE(Join("waits", true).ok());
  local_.Leave("waits", absl::OkStatus(), Soon());
  ASSERT_TRUE(Join("places", true).ok());
  ASSERT_TRUE(Join("no barrier").ok());
  const absl::Status why = absl::AbortedError("the leader is gone");
  local_.EndBarriers(why);
  EXPECT_THAT(answers_, ::testing::ElementsAre(why, why));
  local_.Leave("places", absl::OkStatus(), Soon());  // it was answered already
  EXPECT_EQ(local_.Snapshot(now_).size(), 1U);
  EXPECT_EQ(answers_.size(), 2U);
}

TEST_F(LocalParticipantsTest, AFailureReturnsWhenTheLeaderKnowsOfIt) {
  ASSERT_TRUE(Join("a").ok());
  auto left = std::async(std::launch::async, [this] {
    local_.Leave("a", absl::AbortedError("a mistake"), Soon());
  });
  while (StateOf(0) != State::kFailed) std::this_thread::yield();
  EXPECT_EQ(left.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  Tell();
  left.get();
  EXPECT_TRUE(local_.Empty());
}

TEST_F(LocalParticipantsTest, ALeaderThatIsNotThereDelaysAFailureUntilItsDeadline) {
  ASSERT_TRUE(Join("a").ok());
  local_.Leave("a", absl::AbortedError("a mistake"), Clock::now());
  EXPECT_EQ(local_.Snapshot(now_).at(0).failure, absl::AbortedError("a mistake"));
}

TEST_F(LocalParticipantsTest, ACallThatBreaksIsAFailureThatNamesTheProcess) {
  ASSERT_TRUE(Join("a", true).ok());
  local_.Leave("a", absl::OkStatus(), Soon());
  local_.Lost("a");
  const absl::Status why = local_.Snapshot(now_).at(0).failure;
  EXPECT_EQ(ReasonOf(why), reason::kRankLost);
  EXPECT_THAT(MessageOf(why), ::testing::HasSubstr("its process 7 has ended"));
  EXPECT_EQ(answers_.size(), 1u);
  local_.Lost("a");
  EXPECT_EQ(answers_.size(), 1u) << "answered once";
}

TEST_F(LocalParticipantsTest, ACallThatBreaksAfterItsEndIsNone) {
  ASSERT_TRUE(Join("a").ok());
  local_.Leave("a", absl::OkStatus(), Soon());
  local_.Lost("a");
  EXPECT_EQ(StateOf(0), State::kPlaced);
}

TEST_F(LocalParticipantsTest, AnEndThatOvertakesItsCallIsNotLost) {
  auto left = std::async(std::launch::async, [this] {
    local_.Leave("a", absl::OkStatus(), Soon());
  });
  ASSERT_TRUE(Join("a").ok());
  left.get();
  EXPECT_EQ(StateOf(0), State::kPlaced);
}

TEST_F(LocalParticipantsTest, TheLeaderHearsOfThemInTheOrderInWhichTheyCame) {
  ASSERT_TRUE(Join("z").ok() && Join("a").ok());
  EXPECT_EQ(local_.Snapshot(now_).at(0).id, "z");
  const auto later = local_.Snapshot(now_ + std::chrono::seconds(3));
  EXPECT_EQ(later[0].process_age, std::chrono::seconds(3));
  EXPECT_EQ(later[0].time_left, std::chrono::minutes(10) - std::chrono::seconds(3));
}

TEST_F(LocalParticipantsTest, WhatEndedLongAgoIsNotToldAndTakesNoRoom) {
  for (size_t i = 0; i < kMostParticipants; ++i) {
    ASSERT_TRUE(Join(std::to_string(i)).ok());
    if (i > 0) local_.Leave(std::to_string(i), absl::AbortedError("a mistake"), Clock::now());
  }
  const auto after = Clock::now() - now_ + std::chrono::seconds(5);
  const Participant failed = local_.Snapshot(now_ + after).at(1);
  EXPECT_GE(failed.age, after);
  EXPECT_GE(failed.ended_age, std::chrono::seconds(5));
  EXPECT_LE(failed.ended_age, after);
  EXPECT_EQ(local_.Snapshot(now_ + after + timing::kFailureVisibleFor).size(), 1u) << "the one that loads";
  EXPECT_TRUE(Join("again").ok());
}

TEST_F(LocalParticipantsTest, WhatNobodyCouldTellApartOrThereIsNoRoomForIsRefused) {
  EXPECT_EQ(ReasonOf(Join("")), reason::kInvalidRequest);
  EXPECT_EQ(ReasonOf(Join(std::string(200, 'a'))), reason::kInvalidRequest);
  for (size_t i = 0; i < kMostParticipants; ++i) ASSERT_TRUE(Join(std::to_string(i)).ok());
  EXPECT_EQ(ReasonOf(Join("one more")), reason::kTooManyWaiting);
  EXPECT_TRUE(answers_.empty());
}

}  // namespace
}  // namespace ckptd
