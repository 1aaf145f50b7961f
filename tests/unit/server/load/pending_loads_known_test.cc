// Rounds that begin beside what ranks hold already.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/core_values.h"
#include "tests/testing/pending_loads_fixture.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(PendingLoadsTest, RanksThatHoldTheirShardNeedNotStateAgain) {
  const std::string name = Load({0, 2});
  EXPECT_EQ(State(1), name);
  const auto ready = pending_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].layouts[0], nullptr);
  EXPECT_NE(ready[0].layouts[1], nullptr);
}

TEST_F(PendingLoadsTest, ALoadOfOneRankKeepsWhatTheHoldersAskedFor) {
  Load({0, 2});
  State(1);
  const uint64_t digest = RequestDigest(RankRequest(0, 3));
  EXPECT_EQ(pending_.TakeReady().at(0).request_digests.at(0), digest);
}

TEST_F(PendingLoadsTest, ARankThatTurnsOutToHoldNothingIsWaitedFor) {
  const std::string name = Load({0, 2});
  State(1);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  LoadOutcome outcome;
  outcome.lost = {2};
  pending_.Finished(name, outcome);
  ASSERT_EQ(pending_.ListWaiting().size(), 1u);
  EXPECT_THAT(pending_.ListWaiting()[0].ranks, ElementsAre(2));
  EXPECT_EQ(State(2), name);
  EXPECT_EQ(pending_.TakeReady().size(), 1u);
}

TEST_F(PendingLoadsTest, ALoadThatWasRefusedMemoryWaitsUntilThoseRanksHaveRoom) {
  LoadRequest patient = RuleRequest();
  patient.wait_memory = std::chrono::seconds(5);
  const std::string name = Propose(0, patient);
  const std::string other = Propose(0, RuleRequest("replicate:2"));
  ASSERT_EQ(pending_.TakeReady().size(), 2u);
  LoadOutcome outcome;
  outcome.refused_by = {1, 2};
  outcome.refused = absl::ResourceExhaustedError("a trainer holds it");
  outcome.refused_at = now_;
  pending_.Finished(name, outcome);
  pending_.Finished(other, {absl::OkStatus(), {}, {0, 1, 2}, {}});
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(1, 2));
  EXPECT_THAT(pending_.ListWaiting().at(0).refused, Says("a trainer holds it"));
  pending_.NoteRoom(1, {name}, now_);
  pending_.NoteRoom(2, {name}, now_);  // too soon: each attempt costs the leader some time
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
  const auto later = now_ + std::chrono::milliseconds(100);
  pending_.NoteRoom(1, {name, "checkpoints/unknown"}, later);
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
  pending_.NoteRoom(2, {name}, later);
  EXPECT_EQ(pending_.TakeReady().at(0).name, name);
}

TEST_F(PendingLoadsTest, ALoadThatIsRefusedMemoryAgainAndAgainIsTriedLessOften) {
  LoadRequest patient = RuleRequest();
  patient.wait_memory = std::chrono::hours(1);
  const std::string name = Propose(0, patient);
  LoadOutcome outcome;
  outcome.refused_by = {1};
  outcome.refused = absl::ResourceExhaustedError("a trainer holds it");
  outcome.refused_at = now_;
  for (const int pause : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    ASSERT_EQ(pending_.TakeReady().size(), 1u);
    pending_.Finished(name, outcome);
    outcome.refused_at += std::chrono::milliseconds(pause);
    pending_.NoteRoom(1, {name}, outcome.refused_at - std::chrono::milliseconds(1));
    ASSERT_THAT(pending_.TakeReady(), IsEmpty()) << pause;
    pending_.NoteRoom(1, {name}, outcome.refused_at);
  }
}

TEST_F(PendingLoadsTest, ALoadThatHasWaitedForMemoryLongEnoughExpiresWithTheRefusal) {
  LoadRequest patient = RuleRequest();
  patient.wait_memory = std::chrono::seconds(5);
  const std::string name = Propose(0, patient);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  LoadOutcome outcome;
  outcome.refused_by = {1};
  outcome.refused = absl::ResourceExhaustedError("a trainer holds it");
  pending_.Finished(name, outcome);
  EXPECT_THAT(pending_.TakeExpired(now_ + std::chrono::seconds(4)), IsEmpty());
  const auto expired = pending_.TakeExpired(now_ + std::chrono::seconds(5));
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_THAT(expired[0].refused, Says("a trainer holds it"));
}

TEST_F(PendingLoadsTest, ARankThatHasLeftIsNotWaitedForAsOneWithoutMemory) {
  LoadRequest patient = RuleRequest();
  patient.wait_memory = std::chrono::seconds(5);
  const std::string name = Propose(0, patient);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  LoadOutcome outcome;
  outcome.refused_by = {1};
  outcome.refused = absl::ResourceExhaustedError("a trainer holds it");
  pending_.Finished(name, outcome);
  pending_.SetResidents(1, 2, {});
  EXPECT_EQ(pending_.TakeReady().size(), 1u);
}

TEST_F(PendingLoadsTest, LoadsBeginInTheOrderInWhichTheyWereAskedFor) {
  std::vector<std::string> names;
  for (const char* rules : {"replicate:1", "replicate:2", "replicate:3", "replicate:4"}) {
    names.push_back(Propose(0, RuleRequest(rules)));
  }
  std::vector<std::string> ready;
  for (const ReadyLoad& load : pending_.TakeReady()) ready.push_back(load.name);
  EXPECT_EQ(ready, names);
}

TEST_F(PendingLoadsTest, ARankThatAsksWhileItsLoadRunsWithoutItIsLoadedNext) {
  const std::string name = Load({0, 2});
  State(1);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  EXPECT_EQ(State(2), name);
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
  LoadOutcome outcome;
  outcome.holders = {1};
  pending_.Finished(name, outcome);
  const auto next = pending_.TakeReady();
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].name, name);
  EXPECT_EQ(next[0].layouts[1], nullptr);
  EXPECT_NE(next[0].layouts[2], nullptr);
}

TEST_F(PendingLoadsTest, ARankThatAskedLateIsPartOfALoadThatIsPutBack) {
  const std::string name = Load({0, 2});
  State(1);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  State(2);
  LoadOutcome outcome;
  outcome.lost = {2};
  pending_.Finished(name, outcome);
  const auto ready = pending_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_NE(ready[0].layouts[1], nullptr);
  EXPECT_NE(ready[0].layouts[2], nullptr);
}

TEST_F(PendingLoadsTest, ALateRequestEndsWithALoadThatFails) {
  const std::string name = Load({0, 2});
  State(1);
  pending_.TakeReady();
  State(2);
  LoadOutcome outcome;
  outcome.status = absl::InternalError("boom");
  pending_.Finished(name, outcome);
  EXPECT_THAT(pending_.ListWaiting(), IsEmpty());
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
}

TEST_F(PendingLoadsTest, AFailedLoadLeavesNothingToJoin) {
  const std::string name = Load({});
  EXPECT_NE(State(1), name);
  EXPECT_EQ(pending_.ListWaiting().size(), 1u);
}

TEST_F(PendingLoadsTest, GivesTheFilesOfTheCheckpointThatARequestWouldJoin) {
  Load({0, 2});
  const auto files = pending_.FilesToCheck({1, RankRequest(1, 3)});
  ASSERT_TRUE(files.has_value());
  EXPECT_EQ(files->at(0).path, "/models/m/a");
}

TEST_F(PendingLoadsTest, ARankThatWantsSomethingElseHasNoFilesToCheck) {
  Load({0, 2});
  EXPECT_FALSE(pending_.FilesToCheck({1, RankRequest(1, 3, "v")}).has_value());
}

TEST_F(PendingLoadsTest, ChangedFilesBeginANewCheckpointForAllRanks) {
  const std::string name = Load({0, 2});
  EXPECT_NE(Propose(1, RankRequest(1, 3), false), name);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(0, 2));
}

TEST_F(PendingLoadsTest, WhatAJoiningRankHoldsCanBeJoined) {
  pending_.SetResidents(0, 1, {Resident("checkpoints/old")});
  pending_.SetResidents(2, 1, {Resident("checkpoints/old")});
  EXPECT_EQ(State(1), "checkpoints/old");
  EXPECT_EQ(pending_.TakeReady().size(), 1u);
}

TEST_F(PendingLoadsTest, WhatOnlySomeRanksHoldMustBeStatedByTheOthers) {
  pending_.SetResidents(2, 1, {Resident("checkpoints/old")});
  State(1);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(0));
}

TEST_F(PendingLoadsTest, ResidentsOfAnotherGroupSizeAreIgnored) {
  ResidentCheckpoint resident = Resident("checkpoints/old");
  resident.request_digests.pop_back();
  pending_.SetResidents(2, 1, {resident});
  EXPECT_NE(State(1), "checkpoints/old");
}

TEST_F(PendingLoadsTest, ResidentsOfOneNameMustAgreeOnWhatTheyAre) {
  pending_.SetResidents(0, 1, {Resident("checkpoints/old")});
  ResidentCheckpoint other = Resident("checkpoints/old");
  other.request_digests[0] ^= 1;
  pending_.SetResidents(2, 1, {other});
  State(1);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(2));
}

TEST_F(PendingLoadsTest, ALoadThatHasToWaitAgainIsJoinedAlsoWhenItsRunnerWasOutOfDate) {
  const std::string name = Load({0, 2});
  EXPECT_EQ(State(1), name);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  RunsInAnEpochThatHasPassed(name);
  pending_.Finished(name, {absl::OkStatus(), {}, {}, {0}});
  EXPECT_EQ(State(0), name);
  EXPECT_THAT(pending_.TakeReady(), SizeIs(1));
}

TEST_F(PendingLoadsTest, ALoadThatWasGivenUpIsNotJoinedThoughItHasToWaitAgain) {
  const std::string name = Load({0, 2});
  State(1);
  ASSERT_EQ(pending_.TakeReady().size(), 1u);
  pending_.Cancel(name, absl::AbortedError("unloaded"));
  pending_.Finished(name, {absl::OkStatus(), {}, {}, {0}});
  EXPECT_NE(State(0), name);
}

TEST_F(PendingLoadsTest, WhoJoinsWhileItsPredecessorIsForgottenHoldsWhatItTold) {
  pending_.SetResidents(0, 2, {Resident("checkpoints/old")});
  pending_.SetResidents(0, 1, {});
  State(1);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(2));
}

TEST_F(PendingLoadsTest, WhoAsksWhileALoadOfWhatOthersHoldFailsHasToAskAgainWhenItHasEnded) {
  const std::string name = Load({0, 2});
  State(1);
  pending_.TakeReady();
  RunsInAnEpochThatHasPassed(name);
  EXPECT_FALSE(pending_.Propose({1, RankRequest(1, 3)}, true, now_).value().has_value());
  EXPECT_FALSE(pending_.WaitWhileFinishing({1, RankRequest(1, 3)}, now_));
  pending_.Finished(name, {absl::AbortedError("boom"), {}, {}, {}});
  EXPECT_TRUE(pending_.WaitWhileFinishing({1, RankRequest(1, 3)}, now_));
  EXPECT_EQ(State(1), name);
  EXPECT_THAT(pending_.TakeReady(), SizeIs(1)) << "the others hold theirs";
}

TEST_F(PendingLoadsTest, WhoAsksAgainWaitsUntilALoadThatWasGivenUpIsTaken) {
  const std::string name = Load({0, 2});
  pending_.SetResidents(2, 1, {});
  State(1);
  pending_.Cancel(name, absl::AbortedError("unloaded"));
  EXPECT_FALSE(pending_.WaitWhileFinishing({1, RankRequest(1, 3)}, now_));
  EXPECT_THAT(pending_.TakeExpired(now_), SizeIs(1));
  EXPECT_TRUE(pending_.WaitWhileFinishing({1, RankRequest(1, 3)}, now_));
}

TEST_F(PendingLoadsTest, WaitingSaysThatARankHoldsAShardOfAnEarlierLoad) {
  const std::string name = Load({0, 2});
  State(1, "v");
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(0, 2));
  EXPECT_EQ(pending_.ListWaiting().at(0).conflict, "rank 0 holds its shard of " + name);
}

TEST_F(PendingLoadsTest, ARankThatLeftHoldsNothing) {
  const std::string name = Load({0, 1, 2});
  pending_.SetResidents(2, 1, {});
  EXPECT_EQ(State(1), name);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(2));
}

}  // namespace
}  // namespace ckptd
