// Looking at checkpoints and waiting for what becomes of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "server/catalog/catalog.h"
#include "server/protocol/timing.h"
#include "tests/testing/core_values.h"
#include "tests/testing/small_memory.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

class CatalogWatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(2);
  Catalog catalog_{*memory_, 0, 1};
  const LoadRequest request_ = RuleRequest();
};

TEST_F(CatalogWatchTest, WatchingReturnsAtOnceWithTheFirstVersion) {
  catalog_.Begin("checkpoints/a", request_);
  uint64_t seen = 0;
  ASSERT_OK(catalog_.watchers().Watch("checkpoints/a", seen, Soon()));
  EXPECT_GT(seen, 0u);
}

// A rank's statement waits for those of others; its client comes and goes.
class CatalogClientTest : public CatalogWatchTest {
 protected:
  CatalogClientTest() {
    stated_.proposal_id = "s";
    catalog_.Begin("checkpoints/a", stated_);
  }
  std::vector<std::string> AbandonedAfter(Clock::duration away) {
    return catalog_.watchers().ReapAbandoned(now_ + away);
  }
  void Leave(uint64_t watcher) { catalog_.watchers().Left("checkpoints/a", watcher, now_); }
  CheckpointState State() { return catalog_.Get("checkpoints/a").value().state; }

  LoadRequest stated_ = RankRequest(0, 3);
  const Clock::time_point now_ = Clock::now();
};

TEST_F(CatalogClientTest, IsAbandonedWhenWhoWatchedItHasGoneForGood) {
  const uint64_t watcher = catalog_.watchers().Add("checkpoints/a");
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
  Leave(watcher);
  EXPECT_THAT(AbandonedAfter(Clock::duration(0)), IsEmpty());
  EXPECT_EQ(State(), CheckpointState::kLoading);
  EXPECT_THAT(AbandonedAfter(timing::kAbandoned), ElementsAre("s"));
  EXPECT_EQ(State(), CheckpointState::kFailed);
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());  // it was said
}

TEST_F(CatalogClientTest, IsNotAbandonedByClientsThatNeverWatchOrComeBack) {
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
  Leave(catalog_.watchers().Add("checkpoints/a"));
  catalog_.watchers().Add("checkpoints/a");
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
}

TEST_F(CatalogClientTest, IsNotAbandonedByAClientThatPollsWhoeverElseStopsToWatch) {
  catalog_.watchers().WasPolled("checkpoints/a");
  Leave(catalog_.watchers().Add("checkpoints/a"));
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
}

TEST_F(CatalogClientTest, IsNotAbandonedBetweenTheAnswerToItsNextClientAndItsWatch) {
  Leave(catalog_.watchers().Add("checkpoints/a"));
  catalog_.watchers().ExtendGrace("checkpoints/a", now_ + timing::kAbandoned);
  EXPECT_THAT(AbandonedAfter(timing::kAbandoned), IsEmpty());
  EXPECT_THAT(AbandonedAfter(2 * timing::kAbandoned), ElementsAre("s"));
}

TEST_F(CatalogClientTest, AWatcherOfAnEntryThatWasMadeAnewIsNotItsOwn) {
  const uint64_t old = catalog_.watchers().Add("checkpoints/a");
  catalog_.Fail("checkpoints/a", absl::InternalError("it burned"));
  catalog_.Begin("checkpoints/a", stated_);
  catalog_.watchers().Add("checkpoints/a");
  Leave(old);
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
}

TEST_F(CatalogClientTest, IsNotAbandonedOnceItsLoadHasBegun) {
  Leave(catalog_.watchers().Add("checkpoints/a"));
  Progress progress;
  progress.stage = Stage::kQueued;
  catalog_.UpdateProgress("checkpoints/a", progress);
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
}

TEST_F(CatalogClientTest, ALoadByRulesNeedsNoClient) {
  catalog_.Begin("checkpoints/b", request_);
  catalog_.watchers().Left("checkpoints/b", catalog_.watchers().Add("checkpoints/b"), now_);
  EXPECT_THAT(AbandonedAfter(std::chrono::hours(1)), IsEmpty());
}

TEST_F(CatalogWatchTest, WatchingWakesOnAChange) {
  catalog_.Begin("checkpoints/a", request_);
  uint64_t seen = 0;
  ASSERT_OK(catalog_.watchers().Watch("checkpoints/a", seen, Soon()));
  auto watch = std::async(std::launch::async,
                          [&] { return catalog_.watchers().Watch("checkpoints/a", seen, Soon()); });
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_EQ(watch.get().value().state, CheckpointState::kFailed);
}

TEST_F(CatalogWatchTest, WatchingGivesTheSameVersionAtTheDeadline) {
  catalog_.Begin("checkpoints/a", request_);
  uint64_t seen = 0;
  ASSERT_OK(catalog_.watchers().Watch("checkpoints/a", seen, Soon()));
  const uint64_t before = seen;
  ASSERT_OK(catalog_.watchers().Watch("checkpoints/a", seen, Clock::now()));
  EXPECT_EQ(seen, before);
}

TEST_F(CatalogWatchTest, WatchingEndsWhenTheCheckpointIsUnloaded) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  uint64_t seen = 0;
  ASSERT_OK(catalog_.watchers().Watch("checkpoints/a", seen, Soon()));
  auto watch = std::async(std::launch::async,
                          [&] { return catalog_.watchers().Watch("checkpoints/a", seen, Soon()); });
  ASSERT_OK(catalog_.Unload("checkpoints/a", false));
  EXPECT_THAT(watch.get(), FailsWith(kNotFound, reason::kCheckpointNotFound));
}

TEST_F(CatalogWatchTest, StoppingWakesWatchers) {
  catalog_.Begin("checkpoints/a", request_);
  uint64_t seen = 0;
  ASSERT_OK(catalog_.watchers().Watch("checkpoints/a", seen, Soon()));
  auto watch = std::async(std::launch::async, [&] {
    const Clock::time_point far = Clock::now() + std::chrono::hours(1);
    return catalog_.watchers().Watch("checkpoints/a", seen, far);
  });
  catalog_.Stop();
  EXPECT_OK(watch.get());
}

TEST_F(CatalogWatchTest, WatchEndWaitsUntilTheLoadHasEnded) {
  catalog_.Begin("checkpoints/a", request_);
  auto watch = std::async(std::launch::async, [&] {
    catalog_.watchers().WatchEnd("checkpoints/a", Soon());
    return catalog_.Get("checkpoints/a").value().state;
  });
  catalog_.UpdateProgress("checkpoints/a", {});
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_EQ(watch.get(), CheckpointState::kFailed);
}

TEST_F(CatalogWatchTest, ListsTheNewestFirst) {
  for (const char* name : {"checkpoints/b", "checkpoints/a", "checkpoints/c"}) {
    catalog_.Begin(name, request_);
  }
  std::vector<std::string> names;
  for (const CheckpointInfo& info : catalog_.List()) names.push_back(info.name);
  EXPECT_THAT(names, ::testing::ElementsAre("checkpoints/c", "checkpoints/a", "checkpoints/b"));
}

}  // namespace
}  // namespace ckptd
