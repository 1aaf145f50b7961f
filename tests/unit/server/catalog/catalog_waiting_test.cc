// Memory that clients hold, loads that wait for it, and shards that are kept for who will come.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::StatusCode kExhausted = absl::StatusCode::kResourceExhausted;
constexpr char kA[] = "checkpoints/a";
constexpr char kB[] = "checkpoints/b";
constexpr char kC[] = "checkpoints/c";

// A budget of two segments.
class CatalogWaitingTest : public ::testing::Test {
 protected:
  absl::Status Ask(const std::string& name, uint64_t order, uint64_t segments = 2) {
    catalog_.Begin(name, request_);
    PrepareCall call = CallOf(name, request_);
    call.order = order;
    return catalog_.eviction().Allocate(call, ShardOf(segments * kSmallSegment)).status();
  }
  void Lend(const std::string& name, uint64_t segments = 2) {
    ASSERT_OK(MakeActive(catalog_, name, request_, segments * kSmallSegment));
    generation_ = catalog_.leases().Hold(name, AttachMode::kShared).value().generation;
  }

  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(2);
  Catalog catalog_{*memory_, 0, 1};
  const LoadRequest request_ = RuleRequest();
  uint64_t generation_ = 0;
};

TEST_F(CatalogWaitingTest, WhatAClientHasWaitedForIsNotEvictedUntilItAcquires) {
  catalog_.Begin(kA, request_);
  ASSERT_TRUE(catalog_.leases().KeepFor(kA, "its load"));
  ASSERT_OK(MakeActive(catalog_, kA, request_, 2 * kSmallSegment));
  EXPECT_THAT(Ask(kB, 0), FailsWith(kExhausted, reason::kNoMemory));
  ASSERT_OK_AND_ASSIGN(ShardLeases::Held held, catalog_.leases().Hold(kA, AttachMode::kShared, "its load"));
  catalog_.leases().Release(kA, held.generation);
  held = {};
  EXPECT_OK(Ask(kB, 0));
}

TEST_F(CatalogWaitingTest, WhoAcquiresForAnotherRequestLeavesItKept) {
  ASSERT_OK(MakeActive(catalog_, kA, request_, 2 * kSmallSegment));
  ASSERT_TRUE(catalog_.leases().KeepFor(kA, "its load"));
  ASSERT_OK_AND_ASSIGN(const ShardLeases::Held held, catalog_.leases().Hold(kA, AttachMode::kShared));
  catalog_.leases().Release(kA, held.generation);
  EXPECT_THAT(Ask(kB, 0), FailsWith(kExhausted, reason::kNoMemory));
  EXPECT_THAT(Ask(kB, 0), Says("checkpoints/a is kept for who waited for it"));
}

TEST_F(CatalogWaitingTest, WhatIsKeptForAClientThatHasGoneOrTakesTooLongIsEvicted) {
  ASSERT_OK(MakeActive(catalog_, kA, request_, 2 * kSmallSegment));
  ASSERT_TRUE(catalog_.leases().KeepFor(kA, "its load"));
  catalog_.leases().KeepNoMore(kA, "its load");
  ASSERT_OK(Ask(kB, 0));
  ASSERT_OK(catalog_.Publish(CommitOf(kB)));
  catalog_.leases().SetKept(std::chrono::nanoseconds(0));
  ASSERT_TRUE(catalog_.leases().KeepFor(kB, "another load"));
  EXPECT_OK(Ask(kC, 0));
}

TEST_F(CatalogWaitingTest, WhatIsKeptIsNotUnloadedAsIdleButByName) {
  ASSERT_OK(MakeActive(catalog_, kA, request_, 2 * kSmallSegment));
  ASSERT_TRUE(catalog_.leases().KeepFor(kA, "its load"));
  EXPECT_THAT(catalog_.Unload(kA, false, /*idle=*/true),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kLeased));
  EXPECT_OK(catalog_.Unload(kA, false));
}

TEST_F(CatalogWaitingTest, OfVeryManyRequestsTheFirstOnesAreKeptFor) {
  catalog_.leases().SetKept(std::chrono::nanoseconds(0));
  ASSERT_OK(MakeActive(catalog_, kA, request_, 2 * kSmallSegment));
  for (size_t i = 0; i < 1024; ++i) ASSERT_TRUE(catalog_.leases().KeepFor(kA, std::to_string(i)));
  catalog_.leases().SetKept(std::chrono::hours(1));
  // Those that are over take no place, ...
  for (size_t i = 0; i < 1024; ++i) ASSERT_TRUE(catalog_.leases().KeepFor(kA, std::to_string(i)));
  ASSERT_TRUE(catalog_.leases().KeepFor(kA, "one more"));
  EXPECT_THAT(Ask(kB, 0), FailsWith(kExhausted, reason::kNoMemory));
  // ... and one more than there may be has none: nothing is left when the others have come.
  for (size_t i = 0; i < 1024; ++i) catalog_.leases().KeepNoMore(kA, std::to_string(i));
  EXPECT_OK(Ask(kB, 0));
}

TEST_F(CatalogWaitingTest, ARefusalNamesWhatIsHeldAndByWhichProcesses) {
  catalog_.eviction().SetHolders([](const std::string&) { return std::vector<int32_t>{12, 34}; });
  Lend(kA);
  const absl::Status refused = Ask(kB, 0);
  EXPECT_THAT(refused, Says("checkpoints/a is leased by process 12, 34"));
  EXPECT_THAT(refused, Says("`ckptctl leases --rank 0`"));
}

TEST_F(CatalogWaitingTest, WaitingIsOfferedOnlyWhereClientsCouldLetGoOfEnough) {
  Lend(kA);
  EXPECT_EQ(FactsOf(Ask(kB, 0)).at(Eviction::kHeldBy), kA);
  EXPECT_EQ(FactsOf(Ask(kC, 0, 3)).count(Eviction::kHeldBy), 0u);
}

TEST_F(CatalogWaitingTest, ALoadThatWaitsHasRoomOnceTheLeaseHasEnded) {
  Lend(kA);
  ASSERT_FALSE(Ask(kB, 1).ok());
  EXPECT_TRUE(catalog_.eviction().AnyWaiting());
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), IsEmpty());
  catalog_.leases().Release(kA, generation_);
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), ElementsAre(kB));
  // Gone: else it could be lent again before the load has begun.
  EXPECT_THAT(catalog_.Get(kA), FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
  EXPECT_OK(Ask(kB, 1));
  EXPECT_FALSE(catalog_.eviction().AnyWaiting());
}

TEST_F(CatalogWaitingTest, WhatIsEvictedForALoadThatWaitsIsFreedLaterAndThenThereIsRoom) {
  std::vector<std::function<void()>> later;
  catalog_.eviction().SetLater([&later](std::function<void()> free) { later.push_back(std::move(free)); });
  Lend(kA, 1);
  ASSERT_OK(MakeActive(catalog_, kC, request_, kSmallSegment));
  ASSERT_OK(catalog_.leases().Hold(kC, AttachMode::kShared));
  ASSERT_FALSE(Ask(kB, 1, 1).ok());
  catalog_.leases().Release(kA, generation_);
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), IsEmpty());
  EXPECT_EQ(memory_->Usage().used, 2 * kSmallSegment);
  ASSERT_EQ(later.size(), 1u);
  // What is on its way is not evicted for twice.
  catalog_.leases().Release(kC, catalog_.leases().Look(kC).value().generation);
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), IsEmpty());
  EXPECT_OK(catalog_.Get(kC));
  later[0]();
  EXPECT_EQ(memory_->Usage().used, kSmallSegment);
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), ElementsAre(kB));
  EXPECT_OK(catalog_.Get(kC));
}

TEST_F(CatalogWaitingTest, WhatIsEvictedAndStillInUseIsWaitedFor) {
  ASSERT_OK(MakeActive(catalog_, kA, request_, 2 * kSmallSegment));
  ASSERT_OK_AND_ASSIGN(ShardLeases::Held verified, catalog_.leases().Look(kA));
  const absl::Status refused = Ask(kB, 1);
  EXPECT_THAT(refused, Says("checkpoints/a is evicted and about to be free"));
  EXPECT_EQ(FactsOf(refused).at(Eviction::kHeldBy), kA);
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), IsEmpty());
  verified = {};
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), ElementsAre(kB));
  EXPECT_OK(Ask(kB, 1));
}

TEST_F(CatalogWaitingTest, WhoHasWaitedForLongerGetsTheMemoryFirst) {
  Lend(kA);
  ASSERT_FALSE(Ask(kC, 7).ok());
  ASSERT_FALSE(Ask(kB, 3).ok());
  catalog_.leases().Release(kA, generation_);
  EXPECT_THAT(catalog_.eviction().MakeRoomForWaiting(), ElementsAre(kB));
  EXPECT_THAT(Ask(kC, 7), Says("checkpoints/b has waited"));
  EXPECT_THAT(Ask("checkpoints/that does not wait", 0), Says("checkpoints/b has waited"));
  EXPECT_OK(Ask(kB, 3));
}

TEST_F(CatalogWaitingTest, WhatFitsBesideALoadThatWaitsDoesNotWaitForIt) {
  Lend(kA, 1);
  Lend(kB, 1);
  ASSERT_FALSE(Ask(kC, 1, 1).ok());
  catalog_.leases().Release(kB, generation_);
  EXPECT_OK(Ask("checkpoints/small", 0, 1));
}

TEST_F(CatalogWaitingTest, ALoadThatHasFailedWaitsForNothing) {
  Lend(kA);
  ASSERT_FALSE(Ask(kB, 1).ok());
  catalog_.Fail(kB, absl::AbortedError("given up"));
  EXPECT_FALSE(catalog_.eviction().AnyWaiting());
}

TEST_F(CatalogWaitingTest, AMemoryThatIsGivenBackIsFreeAndItsLoadGoesOn) {
  ASSERT_OK(Ask(kA, 0));
  catalog_.eviction().GiveBack(kA);
  EXPECT_EQ(memory_->Usage().used, 0u);
  EXPECT_EQ(catalog_.Get(kA).value().state, CheckpointState::kLoading);
  ASSERT_OK(Ask(kA, 0));
  EXPECT_OK(catalog_.Publish(CommitOf(kA)));
}

// Ranks that lack a shard of what is ACTIVE here are filled.
class CatalogFillingTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK(MakeActive(catalog_, kA, request_)); }
  CheckpointInfo Info() { return catalog_.Get(kA).value(); }

  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(2);
  Catalog catalog_{*memory_, 0, 2};
  const LoadRequest request_ = RuleRequest("fsdp:2");
};

TEST_F(CatalogFillingTest, ItIsLoadingForClientsUntilAllRanksHoldTheirs) {
  catalog_.BeginFilling(kA, catalog_.Tick());
  EXPECT_EQ(Info().state, CheckpointState::kLoading);
  EXPECT_TRUE(catalog_.Complete(kA));
  EXPECT_EQ(Info().state, CheckpointState::kActive);
  EXPECT_OK(Info().failure);
}

TEST_F(CatalogFillingTest, ItsShardIsLentMeanwhileAndNeitherEvictedNorUnloaded) {
  catalog_.BeginFilling(kA, catalog_.Tick());
  EXPECT_THAT(catalog_.Unload(kA, false),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNotActive));
  EXPECT_FALSE(MakeActive(catalog_, kB, request_, 2 * kSmallSegment).ok());
  EXPECT_OK(catalog_.leases().Hold(kA, AttachMode::kShared));
}

TEST_F(CatalogFillingTest, AFailureIsToldAndTheShardStays) {
  catalog_.BeginFilling(kA, catalog_.Tick());
  catalog_.Fail(kA, absl::AbortedError("rank 1 has no memory"));
  EXPECT_EQ(Info().state, CheckpointState::kActive);
  EXPECT_THAT(Info().failure, Says("rank 1 has no memory"));
  EXPECT_OK(catalog_.leases().Hold(kA, AttachMode::kShared));
  catalog_.BeginFilling(kA, catalog_.Tick());
  EXPECT_OK(Info().failure);
}

TEST_F(CatalogFillingTest, AnEndThatOvertakesTheAnswerIsTheEnd) {
  const uint64_t before = catalog_.Tick();
  catalog_.Fail(kA, absl::AbortedError("rank 1 has no memory"));
  catalog_.BeginFilling(kA, before);
  EXPECT_EQ(Info().state, CheckpointState::kActive);
  EXPECT_THAT(Info().failure, Says("rank 1 has no memory"));
  EXPECT_TRUE(catalog_.Complete(kA));
  catalog_.BeginFilling(kA, before);
  EXPECT_EQ(Info().state, CheckpointState::kActive);
  EXPECT_OK(Info().failure);
}

TEST_F(CatalogFillingTest, ALeaderThatIsLostEndsIt) {
  catalog_.BeginFilling(kA, catalog_.Tick());
  catalog_.FailAllLoading(absl::UnavailableError("rank 0 was lost"));
  EXPECT_EQ(Info().state, CheckpointState::kActive);
  EXPECT_THAT(Info().failure, Says("rank 0 was lost"));
}

TEST_F(CatalogFillingTest, ALoadThatTheLeaderNoLongerRunsHasEnded) {
  catalog_.BeginFilling(kA, catalog_.Tick());
  catalog_.FailForgotten({kA}, catalog_.Tick());
  EXPECT_EQ(Info().state, CheckpointState::kLoading);
  catalog_.FailForgotten({}, catalog_.Tick());
  EXPECT_FALSE(Info().failure.ok());
}

}  // namespace
}  // namespace ckptd
