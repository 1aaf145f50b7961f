// Rounds of ranks that want something else, while others have what they asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "server/core/rounds.h"
#include "tests/testing/core_values.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<SourceFile> kFiles = {{"/models/m/a", 1, 2, 3, 4, 5}};
const std::vector<SourceFile> kNewFiles = {{"/models/m/a", 1, 2, 3, 4, 6}};

class RoundsServedTest : public ::testing::Test {
 protected:
  std::string State(uint32_t rank, const std::string& tensor) {
    return rounds_.Propose(rank, RankRequest(rank, 3, tensor), true, now_).value_or("none yet");
  }
  // That rank's trainer asked for "w" again.
  void Serve(uint32_t rank, const std::string& name, std::chrono::seconds patience = kPatience) {
    rounds_.Served(rank, name, LoadKey(RankRequest(rank, 3)), now_ + patience, now_);
  }
  void Finish(const std::string& name, const std::set<uint32_t>& holders,
              const std::vector<SourceFile>& files = kFiles) {
    rounds_.Finished(name, {absl::OkStatus(), files, holders, {}});
  }
  // All three ranks have "w".
  std::string LoadAll() {
    for (uint32_t rank = 0; rank < 3; ++rank) State(rank, "w");
    const std::string name = rounds_.TakeReady().at(0).name;
    Finish(name, {0, 1, 2});
    return name;
  }
  std::vector<int32_t> Missing() { return rounds_.Waiting().at(0).waiting; }

  static constexpr std::chrono::seconds kPatience{60};
  Rounds rounds_{3};
  Clock::time_point now_ = Clock::now();
};

TEST_F(RoundsServedTest, ARankThatHasWhatItAskedForIsNotWaitedFor) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  State(1, "v");
  EXPECT_THAT(Missing(), IsEmpty());
}

TEST_F(RoundsServedTest, ARankThatIsServedLaterEndsTheWaitingForIt) {
  const std::string old = LoadAll();
  State(1, "v");
  Serve(0, old);
  EXPECT_THAT(Missing(), ElementsAre(2));
  Serve(2, old);
  EXPECT_THAT(Missing(), IsEmpty());
}

TEST_F(RoundsServedTest, NothingIsAskedOfRanksThatWereServed) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  State(1, "v");
  const std::vector<ReadyLoad> ready = rounds_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_THAT(ready[0].served, ElementsAre(0u, 2u));
  EXPECT_EQ(ready[0].stated[0], nullptr);
  EXPECT_NE(ready[0].stated[1], nullptr);
}

TEST_F(RoundsServedTest, WhatTheOthersGetIsReadFromTheSameFiles) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  State(1, "v");
  EXPECT_EQ(rounds_.TakeReady().at(0).files, kFiles);
}

TEST_F(RoundsServedTest, ARankIsWaitedForOnceItsTrainerHasGivenUp) {
  const std::string old = LoadAll();
  Serve(0, old, std::chrono::seconds(1));
  Serve(2, old);
  now_ += std::chrono::seconds(2);
  State(1, "v");
  EXPECT_THAT(Missing(), ElementsAre(0));
}

TEST_F(RoundsServedTest, OnceAllRanksWereServedTheNextRoundWaitsForAll) {
  const std::string old = LoadAll();
  for (uint32_t rank = 0; rank < 3; ++rank) Serve(rank, old);
  State(1, "v");
  EXPECT_THAT(Missing(), ElementsAre(0, 2));
}

TEST_F(RoundsServedTest, ARankIsServedForOneRound) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  Finish(State(1, "v"), {1});
  State(1, "u");
  EXPECT_THAT(Missing(), ElementsAre(0, 2));
}

TEST_F(RoundsServedTest, AnotherLoadWaitsForARankThatWasServed) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  LoadRequest other = RankRequest(1, 3, "v");
  other.source = "/models/another";
  rounds_.Propose(1, other, true, now_);
  EXPECT_THAT(Missing(), ElementsAre(0, 2));
}

TEST_F(RoundsServedTest, WhoDoesNotHoldACheckpointWasNotServedFromIt) {
  const std::string old = LoadAll();
  rounds_.SetResidents(0, {});
  Serve(0, old);
  Serve(2, old);
  Serve(2, "checkpoints/unknown");
  State(1, "v");
  EXPECT_THAT(Missing(), ElementsAre(0));
}

TEST_F(RoundsServedTest, ARankThatStatesSomethingAfterAllIsPartOfTheRound) {
  const std::string old = LoadAll();
  Serve(0, old);
  const std::string name = State(1, "v");
  EXPECT_EQ(State(0, "v"), name);
  EXPECT_EQ(State(2, "v"), name);
  const std::vector<ReadyLoad> ready = rounds_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_THAT(ready[0].served, IsEmpty());
  EXPECT_NE(ready[0].stated[0], nullptr);
}

TEST_F(RoundsServedTest, ARankThatStatesSomethingWhileTheOthersLoadIsLoadedNext) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  const std::string name = State(1, "v");
  rounds_.TakeReady();
  EXPECT_EQ(State(0, "v"), name);
  Finish(name, {1});
  const std::vector<ReadyLoad> ready = rounds_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].name, name);
  EXPECT_NE(ready[0].stated[0], nullptr);
  EXPECT_EQ(ready[0].stated[1], nullptr);
  EXPECT_THAT(ready[0].served, ElementsAre(2u));
}

TEST_F(RoundsServedTest, ARankThatStatesSomethingAfterTheOthersHaveLoadedJoinsThem) {
  const std::string old = LoadAll();
  Serve(0, old);
  Serve(2, old);
  const std::string name = State(1, "v");
  rounds_.TakeReady();
  Finish(name, {1});
  EXPECT_EQ(State(0, "v"), name);
  EXPECT_THAT(rounds_.TakeReady().at(0).served, ElementsAre(2u));
}

TEST_F(RoundsServedTest, WhoWasLoadedBesideHoldersIsNotWaitedForEither) {
  const std::string old = LoadAll();
  rounds_.SetResidents(0, {});  // its daemon was started again
  EXPECT_EQ(State(0, "w"), old);
  rounds_.TakeReady();
  Finish(old, {0});
  Serve(2, old);
  State(1, "v");
  EXPECT_THAT(Missing(), IsEmpty());
}

TEST_F(RoundsServedTest, WhoWasServedBeforeTheLoadWasNotedAsEndedIsNotWaitedFor) {
  for (uint32_t rank = 0; rank < 3; ++rank) State(rank, "w");
  const std::string old = rounds_.TakeReady().at(0).name;
  Serve(0, old);
  Finish(old, {0, 1, 2});
  State(1, "v");
  EXPECT_THAT(Missing(), ElementsAre(2));
}

TEST_F(RoundsServedTest, WhoWasServedFromFilesThatWereReplacedIsWaitedFor) {
  const std::string old = LoadAll();
  rounds_.Propose(1, RankRequest(1, 3, "v"), true, now_);
  Serve(0, old);
  rounds_.SetResidents(2, {{"checkpoints/new", LoadKey(RankRequest(2, 3)), kNewFiles, {7, 8, 9}}});
  Serve(2, "checkpoints/new");
  EXPECT_THAT(Missing(), ElementsAre(0));
}

}  // namespace
}  // namespace ckptd
