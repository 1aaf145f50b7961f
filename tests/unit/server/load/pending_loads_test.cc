#include "server/load/pending_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/pending_loads_fixture.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(PendingLoadsTest, OneProposalOfRulesIsEnough) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  const auto ready = pending_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].name, name);
}

TEST_F(PendingLoadsTest, OfManyCheckpointsTheOldestIsForgottenUnlessItIsResident) {
  const auto load = [this](const std::string& tensor) {
    for (uint32_t rank = 0; rank < 3; ++rank) State(rank, tensor);
    const std::string name = pending_.TakeReady().at(0).name;
    pending_.Finished(name, {absl::OkStatus(), {}, {0, 1, 2}, {}});
    return name;
  };
  const auto known = [this](auto tensor) { return !pending_.IsNew({1, RankRequest(1, 3, tensor)}); };
  const std::string resident = load("resident");
  load("old");
  for (size_t i = 2; i < PendingLoads::kMostKnown; ++i) load("w" + std::to_string(i));
  pending_.ForgetOldest({resident});
  EXPECT_TRUE(known("old")) << "so many there may be";
  load("new");
  pending_.ForgetOldest({resident});
  EXPECT_FALSE(known("old"));
  EXPECT_TRUE(known("resident") && known("w2") && known("new"));
}

TEST_F(PendingLoadsTest, AReadyLoadIsTakenOnce) {
  Propose(1, RuleRequest("fsdp:3"));
  pending_.TakeReady();
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
}

TEST_F(PendingLoadsTest, LoadsByRulesCountAsAskedForByEveryRank) {
  Propose(1, RuleRequest("fsdp:3"));
  const uint64_t digest = RequestDigest(RuleRequest("fsdp:3"));
  EXPECT_THAT(pending_.TakeReady().at(0).request_digests, ElementsAre(digest, digest, digest));
}

TEST_F(PendingLoadsTest, EqualRulesJoinALoadThatRuns) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  pending_.TakeReady();
  EXPECT_EQ(Propose(2, RuleRequest("fsdp:3")), name);
}

TEST_F(PendingLoadsTest, RanksOfTwoJobsMakeTwoLoads) {
  const auto state = [this](uint32_t rank, const std::string& job) {
    LoadRequest request = RankRequest(rank, 3);
    request.job = job;
    return Propose(rank, request);
  };
  const std::string one = state(0, "a");
  const std::string other = state(1, "b");
  EXPECT_NE(other, one);
  EXPECT_EQ(state(1, "a"), one);
  EXPECT_EQ(state(0, "b"), other);
  state(2, "b");
  const std::vector<ReadyLoad> ready = pending_.TakeReady();
  ASSERT_THAT(ready, SizeIs(1));
  EXPECT_EQ(ready[0].name, other);
  EXPECT_EQ(state(2, "a"), one) << "also while the other one runs";
  EXPECT_EQ(state(1, ""), other) << "a job that is not known may be any: the newest";
}

TEST_F(PendingLoadsTest, AGuestMakesALoadOfItsOwn) {
  const auto state = [this](uint32_t rank, std::optional<Caller> guest) {
    LoadRequest request = RankRequest(rank, 3);
    request.guest = std::move(guest);
    return Propose(rank, request);
  };
  const std::string own = state(0, std::nullopt);
  const std::string guests = state(1, Caller{1001, 5});
  EXPECT_NE(guests, own);
  EXPECT_EQ(state(2, Caller{1001, 6, {7}}), guests) << "one user, whatever its groups";
  EXPECT_NE(state(0, Caller{1002, 5}), guests);
  pending_.CancelWaiting("/models/m", absl::AbortedError("a mistake"), 1001);
  const auto ended = pending_.TakeExpired(now_);
  ASSERT_THAT(ended, SizeIs(1));
  EXPECT_EQ(ended[0].name, guests);
}

TEST_F(PendingLoadsTest, RulesOfTwoJobsThatPassFilesAreTwoLoads) {
  const auto ask = [this](const std::string& job, bool passed) {
    LoadRequest request = RuleRequest("fsdp:3");
    request.job = job;
    request.passed = passed;
    return Propose(0, request);
  };
  const std::string one = ask("a", true);
  EXPECT_EQ(ask("a", true), one);
  EXPECT_NE(ask("b", true), one) << "its files may be others";
  EXPECT_NE(ask("b", false), one);
}

TEST_F(PendingLoadsTest, NobodyJoinsALoadThatFails) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  pending_.TakeReady().at(0).state->Fail();
  EXPECT_NE(Propose(2, RuleRequest("fsdp:3")), name);
}

TEST_F(PendingLoadsTest, WhoAsksWhileALoadIsPublishedHasToAskAgain) {
  // Its files may have changed since they were read.
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  EnterPublishing(pending_.TakeReady().at(0));
  EXPECT_FALSE(pending_.Propose({2, RuleRequest("fsdp:3")}, true, now_).value().has_value());
  EXPECT_FALSE(pending_.WaitWhileFinishing({2, RuleRequest("fsdp:3")}, Clock::now()));
  EXPECT_TRUE(pending_.WaitWhileFinishing({2, RuleRequest("fsdp:2")}, Clock::now()));
  pending_.Finished(name, {absl::OkStatus(), {}, {0, 1, 2}, {}});
  EXPECT_TRUE(pending_.WaitWhileFinishing({2, RuleRequest("fsdp:3")}, Clock::now()));
  EXPECT_EQ(Propose(2, RuleRequest("fsdp:3")), name);
}

TEST_F(PendingLoadsTest, TheEndOfALoadThatIsPublishedCanBeWaitedFor) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  const ReadyLoad load = pending_.TakeReady().at(0);
  EXPECT_TRUE(pending_.WaitWhilePublishing(name, Clock::now())) << "it is not so far yet";
  EnterPublishing(load);
  EXPECT_FALSE(pending_.WaitWhilePublishing(name, Clock::now()));
  EXPECT_TRUE(pending_.WaitWhilePublishing("checkpoints/another", Clock::now()));
  pending_.Finished(name, {absl::OkStatus(), {}, {0, 1, 2}, {}});
  EXPECT_TRUE(pending_.WaitWhilePublishing(name, Clock::now()));
}

TEST_F(PendingLoadsTest, NamesTheLoadsThatWaitOrRun) {
  EXPECT_THAT(pending_.Names(), IsEmpty());
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  EXPECT_THAT(pending_.Names(), ElementsAre(name));
  pending_.TakeReady();
  EXPECT_THAT(pending_.Names(), ElementsAre(name));
  pending_.Finished(name, {});
  EXPECT_THAT(pending_.Names(), IsEmpty());
}

TEST_F(PendingLoadsTest, ALoadThatIsCancelledBeforeItBeginsIsTakenWithTheReason) {
  const std::string name = State(1);
  pending_.Cancel(name, absl::AbortedError("a mistake"));
  pending_.Cancel(name, absl::AbortedError("and again"));
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_NE(State(rank), name) << "nobody joins it";
  EXPECT_EQ(pending_.TakeReady().size(), 1u) << "that of those who asked after it";
  const auto taken = pending_.TakeExpired(now_);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].name, name);
  EXPECT_EQ(taken[0].cancelled, absl::AbortedError("a mistake"));
}

TEST_F(PendingLoadsTest, WhoRunsALoadFindsThatItIsCancelled) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  const auto state = pending_.TakeReady().at(0).state;
  EXPECT_OK(state->cancelled());
  pending_.Cancel(name, absl::AbortedError("a mistake"));
  EXPECT_EQ(state->cancelled(), absl::AbortedError("a mistake"));
  EXPECT_EQ(state->Advance(LoadState::kOpening), absl::AbortedError("a mistake"));
  EXPECT_THAT(pending_.TakeExpired(now_), IsEmpty()) << "its end is the runner's";
  EXPECT_NE(Propose(2, RuleRequest("fsdp:3")), name);
}

TEST_F(PendingLoadsTest, OnlyALoadThatHasAllocatedOnNoRankCanEndBeforeItsRunnerDoes) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  const absl::Status why = absl::AbortedError("a mistake");
  EnterAllocating(pending_.TakeReady().at(0));
  EXPECT_FALSE(pending_.Cancel(name, why)) << "bytes may move";
  const std::string next = Propose(1, RuleRequest("fsdp:3"));
  const auto state = pending_.TakeReady().at(0).state;
  EXPECT_TRUE(pending_.Cancel(next, why));
  EXPECT_EQ(state->Advance(LoadState::kAllocating), why) << "and no rank allocates for it";
}

TEST_F(PendingLoadsTest, ALoadIsOverdueUntilItAllocates) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  const Clock::time_point late = now_ + RuleRequest("fsdp:3").timeout;
  EXPECT_THAT(pending_.Overdue(late), IsEmpty()) << "it expires";
  const ReadyLoad load = pending_.TakeReady().at(0);
  EXPECT_THAT(pending_.Overdue(late - std::chrono::nanoseconds(1)), IsEmpty());
  EXPECT_THAT(pending_.Overdue(late), ElementsAre(name));
  EnterAllocating(load);
  EXPECT_THAT(pending_.Overdue(late), IsEmpty());
}

TEST_F(PendingLoadsTest, ALoadThatIsBeingPublishedIsNotCancelled) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  const ReadyLoad load = pending_.TakeReady().at(0);
  EnterPublishing(load);
  pending_.Cancel(name, absl::AbortedError("too late"));
  EXPECT_OK(load.state->cancelled());
}

TEST_F(PendingLoadsTest, OtherRulesAreAnotherLoad) {
  const std::string name = Propose(1, RuleRequest("fsdp:3"));
  EXPECT_NE(Propose(2, RuleRequest("replicate:3")), name);
}

TEST_F(PendingLoadsTest, ProposalsOfAllRanksAreGathered) {
  State(0);
  State(2);
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
  State(1);
  const auto ready = pending_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  for (uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ready[0].layouts[rank]->rank, rank);
}

TEST_F(PendingLoadsTest, ProposalsOfOneLoadShareItsName) {
  const std::string name = State(0);
  EXPECT_EQ(State(1), name);
}

TEST_F(PendingLoadsTest, WaitingNamesTheRanksThatHaveNotStated) {
  State(1);
  const auto waiting = pending_.ListWaiting();
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_THAT(waiting[0].ranks, ElementsAre(0, 2));
}

TEST_F(PendingLoadsTest, WaitingSaysWhatARankLoadsInstead) {
  LoadRequest other = RankRequest(1, 3);
  other.source = "/models/other";
  State(0);
  EXPECT_EQ(pending_.ListWaiting().at(0).conflict, "");
  Propose(1, other);
  for (const PendingLoads::Waiting& pending : pending_.ListWaiting()) {
    EXPECT_THAT(pending.conflict, ::testing::AnyOf("rank 1 loads /models/other",
                                                  "rank 0 loads " + RankRequest(0, 3).source));
  }
  State(1);
  State(2);
  pending_.TakeReady();
  ASSERT_EQ(pending_.ListWaiting().size(), 1u);
  EXPECT_EQ(pending_.ListWaiting()[0].conflict, "") << "one that runs waits for nobody";
}

TEST_F(PendingLoadsTest, ARequestIsNewUntilSomebodyHasAskedForTheSameOrHoldsIt) {
  EXPECT_TRUE(pending_.IsNew({0, RankRequest(0, 3)}));
  State(1);
  EXPECT_FALSE(pending_.IsNew({0, RankRequest(0, 3)}));
  Load({0, 1, 2});
  EXPECT_FALSE(pending_.IsNew({0, RankRequest(0, 3)}));
  EXPECT_TRUE(pending_.IsNew({0, RankRequest(0, 3, "other")}));
}

TEST_F(PendingLoadsTest, WaitingSaysThatARankLoadsWithOtherOptions) {
  LoadRequest other = RankRequest(1, 3);
  other.policy.cast_to = Dtype::kF16;
  State(0);
  Propose(1, other);
  const auto waiting = pending_.ListWaiting();
  ASSERT_EQ(waiting.size(), 2u);
  for (const PendingLoads::Waiting& pending : waiting) {
    EXPECT_THAT(pending.conflict, ::testing::HasSubstr(" with other options"));
  }
}

TEST_F(PendingLoadsTest, StatingTheSameTwiceChangesNothing) {
  const std::string name = State(1);
  EXPECT_EQ(State(1), name);
  EXPECT_EQ(pending_.ListWaiting().size(), 1u);
}

TEST_F(PendingLoadsTest, ARankThatStatesSomethingElseOpensAnotherLoad) {
  const std::string name = State(1, "w");
  EXPECT_NE(State(1, "v"), name);
  EXPECT_EQ(pending_.ListWaiting().size(), 2u);
}

TEST_F(PendingLoadsTest, OfSeveralLoadsTheOneThatWasBegunLastIsJoined) {
  for (int i = 0; i < 20; ++i) {  // their names are random
    PendingLoads pending_loads(3);
    ASSERT_OK(pending_loads.Propose({0, RankRequest(0, 3, "of a trainer that has ended")}, true, now_));
    const auto last = pending_loads.Propose({0, RankRequest(0, 3)}, true, now_).value();
    EXPECT_EQ(pending_loads.Propose({1, RankRequest(1, 3)}, true, now_).value(), last);
  }
}

LoadRequest Named(LoadRequest request, const std::string& id) {
  request.proposal_id = id;
  return request;
}

TEST_F(PendingLoadsTest, ARankWhoseTrainerHasGoneIsWaitedForAgain) {
  const std::string name = Propose(0, Named(RankRequest(0, 3, "old"), "s0"));
  State(1);
  pending_.Withdraw(0, {"s0"}, now_);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(0, 2));
  State(2);
  EXPECT_THAT(pending_.TakeReady(), IsEmpty());
  EXPECT_EQ(State(0), name);  // another trainer, with other tensors
  const auto ready = pending_.TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].request_digests[0], RequestDigest(RankRequest(0, 3)));
}

TEST_F(PendingLoadsTest, OnlyTheVeryProposalIsWithdrawn) {
  Propose(0, Named(RankRequest(0, 3), "s0"));
  Propose(0, Named(RankRequest(0, 3), "s0 again"));
  pending_.Withdraw(0, {"s0", ""}, now_);
  pending_.Withdraw(1, {"s0 again"}, now_);
  EXPECT_THAT(pending_.ListWaiting().at(0).ranks, ElementsAre(1, 2));
}

TEST_F(PendingLoadsTest, ALoadThatRunsIsNotStoppedByATrainerThatHasGone) {
  for (uint32_t rank = 0; rank < 3; ++rank) Propose(rank, Named(RankRequest(rank, 3), "s"));
  pending_.TakeReady();
  pending_.Withdraw(0, {"s"}, now_);
  EXPECT_EQ(pending_.Names().size(), 1u);
  EXPECT_THAT(pending_.TakeExpired(now_ + std::chrono::hours(1)), IsEmpty());
}

TEST_F(PendingLoadsTest, ALoadThatNobodyWaitsForExpiresAtOnceUnlessSomebodyJoinsIt) {
  Propose(0, Named(RankRequest(0, 3), "s0"));
  pending_.Withdraw(0, {"s0"}, now_);
  Propose(1, Named(RankRequest(1, 3), "s1"));
  EXPECT_THAT(pending_.TakeExpired(now_), IsEmpty());
  pending_.Withdraw(1, {"s1"}, now_);
  EXPECT_EQ(pending_.TakeExpired(now_).size(), 1u);
}

TEST_F(PendingLoadsTest, AProposalThatComesWhileTheLoadRunsBeginsAnew) {
  const std::string name = State(0);
  State(1);
  State(2);
  pending_.TakeReady();
  EXPECT_NE(State(1, "v"), name);
}

TEST_F(PendingLoadsTest, ALoadExpiresAtItsDeadlineAndNamesTheMissingRanks) {
  LoadRequest request = RankRequest(1, 3);
  request.timeout = std::chrono::seconds(5);
  const std::string name = Propose(1, request);
  EXPECT_THAT(pending_.TakeExpired(now_ + std::chrono::seconds(4)), IsEmpty());
  const auto expired = pending_.TakeExpired(now_ + std::chrono::seconds(5));
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].name, name);
  EXPECT_THAT(expired[0].ranks, ElementsAre(0, 2));
}

TEST_F(PendingLoadsTest, WhoJoinsALoadHasItsOwnTime) {
  LoadRequest request = RankRequest(1, 3);
  request.timeout = std::chrono::seconds(5);
  Propose(1, request);
  request = RankRequest(0, 3);
  request.timeout = std::chrono::seconds(9);
  Propose(0, request);
  EXPECT_THAT(pending_.TakeExpired(now_ + std::chrono::seconds(8)), IsEmpty());
  EXPECT_EQ(pending_.TakeExpired(now_ + std::chrono::seconds(9)).size(), 1u);
}

TEST_F(PendingLoadsTest, AnExpiredLoadIsForgotten) {
  State(1);
  pending_.TakeExpired(now_ + std::chrono::hours(1));
  EXPECT_THAT(pending_.ListWaiting(), IsEmpty());
}

TEST_F(PendingLoadsTest, ALoadThatRunsDoesNotExpire) {
  Propose(1, RuleRequest("fsdp:3"));
  pending_.TakeReady();
  EXPECT_THAT(pending_.TakeExpired(now_ + std::chrono::hours(1)), IsEmpty());
}

// Of a source that nobody else asks for.
LoadRequest Another(uint32_t rank, size_t number) {
  LoadRequest request = RankRequest(rank, 3);
  request.source = "/models/" + std::to_string(number);
  return request;
}

TEST_F(PendingLoadsTest, ARankBeginsSoManyLoadsAndNoMoreUntilOneEnds) {
  for (size_t i = 0; i < PendingLoads::kMostOpenOfRank; ++i) Propose(1, Another(1, i));
  const auto refused = pending_.Propose({1, Another(1, 1000)}, true, now_);
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kTooManyLoads));
  EXPECT_THAT(refused.status(), Says("rank 1"));
  EXPECT_EQ(FactsOf(refused.status()).at("rank"), "1");
  EXPECT_OK(pending_.Propose({1, Another(1, 0)}, true, now_)) << "this one is open already";
  EXPECT_OK(pending_.Propose({0, Another(0, 1)}, true, now_)) << "and joined by others";
  EXPECT_OK(pending_.Propose({2, Another(2, 1000)}, true, now_)) << "others have room of their own";
  pending_.Cancel(Propose(1, Another(1, 0)), absl::AbortedError("not wanted"));
  pending_.TakeExpired(now_);
  EXPECT_OK(pending_.Propose({1, Another(1, 1001)}, true, now_));
}

TEST(PendingLoads, AllRanksTogetherBeginSoManyLoadsAndNoMore) {
  constexpr uint32_t kRanks = 8;
  PendingLoads pending_loads(kRanks);
  const auto propose = [&pending_loads](uint32_t rank, size_t number) {
    LoadRequest request = RuleRequest("fsdp:8", "/models/" + std::to_string(number));
    return pending_loads.Propose({rank, request}, true, Clock::now()).status();
  };
  for (size_t i = 0; i < PendingLoads::kMostOpen; ++i) ASSERT_OK(propose(i % kRanks, i));
  EXPECT_THAT(propose(0, PendingLoads::kMostOpen),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kTooManyLoads));
}

TEST_F(PendingLoadsTest, WhatExpiresSaysWhatARankLoadsInsteadThoughThatExpiresWithIt) {
  State(0);
  Propose(1, Another(1, 5));
  const auto expired = pending_.TakeExpired(now_ + std::chrono::hours(24));
  ASSERT_EQ(expired.size(), 2u);
  for (const PendingLoads::Waiting& pending : expired) {
    EXPECT_THAT(pending.conflict, ::testing::AnyOf("rank 1 loads /models/5",
                                                  "rank 0 loads " + RankRequest(0, 3).source));
  }
}

}  // namespace
}  // namespace ckptd
