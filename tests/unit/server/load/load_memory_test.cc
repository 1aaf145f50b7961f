// Loads of which a rank has no memory, and what is mapped of other ranks.
#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/load_runner_fixture.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using LoadMemoryTest = LoadRunnerTest;

TEST_F(LoadMemoryTest, WithoutMemoryOnOneRankAllGiveBackTheirsAndTheLoadMayWait) {
  LoadRequest other = RuleRequest();
  other.intended = AttachMode::kExclusive;  // never sealed, so that rank 0 can map it afterwards
  Catalog& crowded = group_.rank(1).catalog;
  ASSERT_OK(MakeActive(crowded, "checkpoints/other", other, 8 * kSmallSegment));
  ASSERT_OK(crowded.leases().Hold("checkpoints/other", AttachMode::kExclusive));
  ReadyLoad load = ByRules("fsdp:3");
  load.order = 1;
  load.memory_deadline = Soon();
  const LoadOutcome outcome = Run(load);
  EXPECT_OK(outcome.status);
  EXPECT_THAT(outcome.refused_by, ElementsAre(1));
  EXPECT_THAT(outcome.refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(group_.rank(0).memory->Usage().used, 0u);
  EXPECT_EQ(Info(0).state, CheckpointState::kLoading);
  ASSERT_OK(crowded.Unload("checkpoints/other", true));
  EXPECT_OK(Run(load).status);
  EXPECT_EQ(Info(1).state, CheckpointState::kActive);
}

TEST_F(LoadMemoryTest, WhatOtherRanksHoldIsFilledBeforeAnOlderLoadThatWaitsForMemory) {
  ReadyLoad load = ByRules("fsdp:3");
  load.files = Run(load).files;
  Catalog& crowded = group_.rank(2).catalog;
  ASSERT_OK(crowded.Unload(kName, true));
  ASSERT_OK(MakeActive(crowded, "checkpoints/other", RuleRequest(), 8 * kSmallSegment));
  ASSERT_OK(crowded.leases().Hold("checkpoints/other", AttachMode::kShared));
  crowded.Begin("checkpoints/older", RuleRequest());
  PrepareCall older = CallOf("checkpoints/older", RuleRequest());
  older.order = 2;
  ASSERT_FALSE(crowded.eviction().Allocate(older, ShardOf(8 * kSmallSegment)).ok());
  ASSERT_OK(crowded.Unload("checkpoints/other", true));
  load.order = 9;
  load.memory_deadline = Soon();
  ReadyLoad of_no_rank = load;
  of_no_rank.files.clear();
  EXPECT_THAT(Run(of_no_rank).refused_by, ElementsAre(2));
  EXPECT_THAT(Run(load).refused_by, ::testing::IsEmpty());
  EXPECT_EQ(Info(2).state, CheckpointState::kActive);
  // Also where its own client would not wait.
  ASSERT_OK(crowded.Unload(kName, true));
  load.memory_deadline = {};
  EXPECT_OK(Run(load).status);
}

TEST_F(LoadMemoryTest, ALoadThatDoesNotWaitForMemoryFailsWithTheRefusal) {
  Catalog& crowded = group_.rank(1).catalog;
  ASSERT_OK(MakeActive(crowded, "checkpoints/other", RuleRequest(), 8 * kSmallSegment));
  ASSERT_OK(crowded.leases().Hold("checkpoints/other", AttachMode::kShared));
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
}

TEST_F(LoadMemoryTest, ARankWithoutMemoryIsAskedAgainOnceNothingOfItIsMapped) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  ASSERT_OK(group_.rank(1).catalog.Unload(kName, false));
  std::vector<bool> unmapped;
  ScriptedLink& link = *group_.rank(1).link;
  link.on_prepare = [&]() -> absl::Status {
    if (group_.peer_memory().mapped(1) == 0) return absl::OkStatus();
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "no memory");
  };
  link.alter_prepare = [&](PrepareCall& call) { unmapped.push_back(call.unmapped); };
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_THAT(unmapped, ElementsAre(true)) << "what was sealed cannot be mapped again";
  EXPECT_EQ(BytesOf(group_.rank(1).catalog, kName, 0), Rows(source_.a(), 1000, 3, 6));
}

TEST_F(LoadMemoryTest, TheLeaderWithoutMemoryTriesAgainOnceNothingIsMappedThatOthersHaveReleased) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  for (const uint32_t rank : {0u, 1u}) {
    ASSERT_OK(group_.rank(rank).catalog.Unload(kName, false));
    group_.rank(rank).memory->OnWriterRestart();
  }
  int asked = 0;
  group_.rank(0).link->on_prepare = [&]() -> absl::Status {
    ++asked;
    if (group_.peer_memory().mapped(1) == 0) return absl::OkStatus();
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "no memory");
  };
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(BytesOf(group_.rank(1).catalog, kName, 0), Rows(source_.a(), 1000, 3, 6));
}

TEST_F(LoadMemoryTest, ARankWithoutMemoryOfWhichNothingIsMappedIsAskedOnce) {
  int asked = 0;
  group_.rank(1).link->on_prepare = [&]() -> absl::Status {
    ++asked;
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "no memory");
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(asked, 1);
}

TEST_F(LoadMemoryTest, ARankKeepsOneTableOfItsTensorsAndNoCopiesWhileItIsFilled) {
  RankInProcess& rank = group_.rank(1);
  bool asked = false;
  rank.link->on_commit = [&]() -> absl::Status {
    asked = true;
    const auto incoming = rank.side.Receive(group_.membership().epoch(), kName).value();
    EXPECT_EQ(&incoming->plan(), &rank.catalog.LoadingShard(kName)->plan);
    EXPECT_TRUE(incoming->plan().ops.empty());
    const RankPlan whole = incoming->PlanCopies().value();
    EXPECT_FALSE(whole.ops.empty());
    EXPECT_EQ(whole.digest, incoming->plan().digest);
    return absl::OkStatus();
  };
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_TRUE(asked);
}

TEST_F(LoadMemoryTest, WhatALoadHasMappedIsKeptForTheNextOne) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_THAT(group_.peer_memory().kept(1), testing::Not(testing::IsEmpty()));
}

TEST_F(LoadMemoryTest, WhatClientsAreToOwnIsNotKeptMapped) {
  ReadyLoad load = ByRules("fsdp:3");
  load.request.intended = AttachMode::kExclusive;
  ASSERT_OK(Run(load).status);
  EXPECT_THAT(group_.peer_memory().kept(1), testing::IsEmpty());
}

}  // namespace
}  // namespace ckptd
