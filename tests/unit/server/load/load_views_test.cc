// Loads of a group that are served from what some of its ranks hold already.
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/load_runner.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kName[] = "checkpoints/a";

class LoadViewsTest : public ::testing::Test {
 protected:
  ReadyLoad ByRules(const std::string& rules) {
    ReadyLoad load;
    load.name = kName;
    load.request = RuleRequest(rules, source_.path());
    load.deadline = Soon();
    load.request_digests.assign(group_.size(), RequestDigest(load.request));
    return load;
  }
  LoadOutcome Run(const ReadyLoad& load) {
    LoadRunner::Parts parts{group_.rank(0).catalog, group_.membership(), group_.peers(), stopping_,
                            {.threads = 2}};
    return LoadRunner(parts, load, group_.membership().CurrentSession().value()).Run();
  }
  CheckpointInfo Info(uint32_t rank) { return group_.rank(rank).catalog.Get(kName).value(); }

  SmallSource source_;
  GroupInProcess group_{3};
  std::atomic<bool> stopping_ = false;
};

TEST_F(LoadViewsTest, AViewIsLoadingUntilAllRanksHoldTheirsAndKeepsTheFailureOfOneThatDoesNot) {
  ReadyLoad owner = ByRules("fsdp:3");
  owner.name = "checkpoints/owner";
  ASSERT_OK(Run(owner).status);
  ASSERT_OK(group_.rank(2).catalog.Unload(owner.name, true));
  Catalog& first = group_.rank(0).catalog;
  ReadyLoad view = ByRules("hsdp:1x3");
  CheckpointInfo meanwhile;
  absl::Status unloaded;
  group_.rank(2).link->on_finish = [&] {
    meanwhile = first.Get(kName).value();
    unloaded = first.Unload(owner.name, false).status();
    // It is kept for who waits for the view from the end of that load on.
    first.leases().SetKept(std::chrono::nanoseconds(0));
    EXPECT_TRUE(first.leases().KeepFor(kName, "its load"));
    first.leases().SetKept(std::chrono::hours(1));
    return absl::UnavailableError("its cable was cut");
  };
  EXPECT_FALSE(Run(view).status.ok());
  EXPECT_EQ(meanwhile.served_from, owner.name);
  EXPECT_EQ(meanwhile.state, CheckpointState::kLoading);
  EXPECT_THAT(unloaded, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNotActive));
  EXPECT_EQ(Info(0).state, CheckpointState::kActive);
  EXPECT_THAT(Info(0).failure, Says("its cable was cut"));
  EXPECT_THAT(first.eviction().MakeRoom(kSmallSegment, absl::ResourceExhaustedError("full")),
              Says("checkpoints/owner is kept for who waited for it"));
}

TEST_F(LoadViewsTest, AViewOnAllRanksIsActiveOnAll) {
  ReadyLoad owner = ByRules("fsdp:3");
  owner.name = "checkpoints/owner";
  ASSERT_OK(Run(owner).status);
  ASSERT_OK(Run(ByRules("hsdp:1x3")).status);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(Info(rank).served_from, owner.name);
    EXPECT_EQ(Info(rank).state, CheckpointState::kActive);
    EXPECT_EQ(Info(rank).resident_ranks, 3u);
  }
}

TEST_F(LoadViewsTest, AViewWhoseLoadWaitsForMemoryElsewhereKeepsNoMemory) {
  ReadyLoad owner = ByRules("fsdp:3");
  owner.name = "checkpoints/owner";
  ASSERT_OK(Run(owner).status);
  Catalog& crowded = group_.rank(2).catalog;
  ASSERT_OK(crowded.Unload(owner.name, true));
  ASSERT_OK(MakeActive(crowded, "checkpoints/other", RuleRequest(), 8 * kSmallSegment));
  ASSERT_OK(crowded.leases().Hold("checkpoints/other", AttachMode::kShared));
  ReadyLoad view = ByRules("hsdp:1x3");
  view.memory_deadline = Soon();
  EXPECT_THAT(Run(view).refused_by, ElementsAre(2));
  EXPECT_EQ(Info(0).state, CheckpointState::kLoading);
  EXPECT_THAT(Info(0).served_from, IsEmpty());
  EXPECT_OK(group_.rank(0).catalog.Unload(owner.name, false));
}

TEST_F(LoadViewsTest, WhatRanksHoldIsNotEvictedWhileAnotherIsFilledThoughNobodyAskedThere) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  ASSERT_OK(group_.rank(2).catalog.Unload(kName, true));
  absl::Status room;
  group_.rank(2).link->on_finish = [&] {
    room = group_.rank(1).catalog.eviction().MakeRoom(kSmallSegment, absl::ResourceExhaustedError("full"));
    return absl::OkStatus();
  };
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_THAT(room, Says("checkpoints/a is needed until other ranks are filled"));
  EXPECT_OK(group_.rank(1).catalog.eviction().MakeRoom(kSmallSegment, absl::ResourceExhaustedError("full")));
}

}  // namespace
}  // namespace ckptd
