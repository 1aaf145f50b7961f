// The small parts of the core: rendezvous values, the worker, progress.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/core/coordinator.h"
#include "server/core/key_value.h"
#include "server/core/progress_meter.h"
#include "server/core/worker.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

TEST(KeyValueStore, StoppingEndsWaiting) {
  KeyValueStore store;
  auto waiting = std::async(std::launch::async, [&] { return store.Get("never", Soon()); });
  store.Stop();
  EXPECT_THAT(waiting.get(), FailsWith(absl::StatusCode::kUnavailable, reason::kDraining));
}

TEST(KeyValueStore, TheFirstValueStays) {
  KeyValueStore store;
  ASSERT_OK(store.Put("id", "one"));
  EXPECT_EQ(store.Put("id", "two").value(), "one");
  EXPECT_EQ(store.Get("id", Clock::now()).value(), "one");
}

TEST(KeyValueStore, WaitsForAValue) {
  KeyValueStore store;
  auto value = std::async(std::launch::async, [&] { return store.Get("id", Soon()); });
  ASSERT_OK(store.Put("id", "one"));
  EXPECT_EQ(value.get().value(), "one");
}

TEST(KeyValueStore, NamesTheKeyThatNobodyPut) {
  KeyValueStore store;
  const auto value = store.Get("id", Clock::now());
  EXPECT_THAT(value, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_EQ(FactsOf(value.status()).at("key"), "id");
}

TEST(KeyValueStore, RefusesKeysAndValuesPastTheirLimits) {
  KeyValueStore store;
  const std::string long_key(KeyValueStore::kMaxKeyBytes + 1, 'k');
  const std::string long_value(KeyValueStore::kMaxValueBytes + 1, 'v');
  EXPECT_THAT(store.Put("", "v"), FailsWith(kInvalidArgument, reason::kInvalidRequest));
  EXPECT_THAT(store.Put(long_key, "v"), FailsWith(kInvalidArgument, reason::kInvalidRequest));
  EXPECT_THAT(store.Put("k", long_value), FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(KeyValueStore, RefusesMoreKeysThanItMayHold) {
  KeyValueStore store;
  for (size_t i = 0; i < KeyValueStore::kMaxKeys; ++i) ASSERT_OK(store.Put(std::to_string(i), ""));
  EXPECT_THAT(store.Put("one more", ""),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kInvalidRequest));
}

TEST(KeyValueStore, ClearingMakesRoomForNewValues) {
  KeyValueStore store;
  ASSERT_OK(store.Put("id", "one"));
  store.Clear();
  EXPECT_EQ(store.Put("id", "two").value(), "two");
}

TEST(Worker, RunsTasksInTheirOrder) {
  std::vector<int> order;
  Worker worker;
  for (int i = 0; i < 100; ++i) worker.Post([&order, i] { order.push_back(i); });
  worker.Submit([] {}).get();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Worker, GivesBackWhatATaskReturns) {
  Worker worker;
  EXPECT_EQ(worker.Submit([] { return 42; }).get(), 42);
}

TEST(Worker, RunsWhatIsQueuedBeforeItGoes) {
  int done = 0;
  {
    Worker worker;
    for (int i = 0; i < 10; ++i) worker.Post([&done] { ++done; });
  }
  EXPECT_EQ(done, 10);
}

TEST(ProgressMeter, KeepsTheTimesOfFinishedStages) {
  ProgressMeter meter;
  meter.Enter(Stage::kOpening);
  meter.Enter(Stage::kPlanning);
  const Progress progress = meter.Read();
  EXPECT_EQ(progress.stage, Stage::kPlanning);
  ASSERT_EQ(progress.stages.size(), 1u);
  EXPECT_EQ(progress.stages[0].first, Stage::kOpening);
}

TEST(ProgressMeter, CountsATransferAndNamesTheRankThatMissesMost) {
  TransferProgress counters(3);
  counters.done[0] = 100;
  counters.done[1] = 20;
  counters.done[2] = 60;
  counters.storage_bytes = 110;
  ProgressMeter meter;
  meter.Attach(counters, {{0, 100}, {1, 100}, {4, 100}}, 0);
  const Progress progress = meter.Read();
  EXPECT_EQ(progress.bytes_total, 300u);
  EXPECT_EQ(progress.bytes_done, 180u);
  EXPECT_EQ(progress.sent_bytes, 80u);  // the reader's own part is not sent
  EXPECT_EQ(progress.storage_bytes, 110u);
  EXPECT_EQ(progress.slowest_rank, 1);
}

TEST(ProgressMeter, NoRankIsSlowestWhenAllIsDone) {
  TransferProgress counters(1);
  counters.done[0] = 100;
  ProgressMeter meter;
  meter.Attach(counters, {{0, 100}}, 0);
  EXPECT_EQ(meter.Read().slowest_rank, -1);
}

TEST(ProgressMeter, KeepsTheLastCountsOnceDetached) {
  ProgressMeter meter;
  {
    TransferProgress counters(1);
    meter.Attach(counters, {{0, 100}}, 0);
    counters.done[0] = 100;
    meter.Detach();
  }
  EXPECT_EQ(meter.Read().bytes_done, 100u);
}

TEST(CheckRequest, AcceptsRulesForThisGroup) {
  EXPECT_OK(CheckRequest(RuleRequest("fsdp:2"), 1, 2));
}

TEST(CheckRequest, RefusesARelativeSource) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:2", "models/m"), 1, 2),
              FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(CheckRequest, RefusesAPathThatNoFileCanHave) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:2", "/" + std::string(5000, 'x')), 1, 2),
              FailsWith(kInvalidArgument, reason::kInvalidRequest));
}

TEST(CheckRequest, RefusesRulesForAnotherGroupSize) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:3"), 1, 2),
              FailsWith(kInvalidArgument, reason::kWrongWorldSize));
}

TEST(CheckRequest, RefusesRulesThatDoNotParse) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp"), 1, 2),
              FailsWith(kInvalidArgument, reason::kLayoutInvalid));
}

TEST(CheckRequest, RefusesTheStatementOfAnotherRank) {
  EXPECT_THAT(CheckRequest(RankRequest(0, 2), 1, 2),
              FailsWith(kInvalidArgument, reason::kWrongRank));
}

TEST(CheckRequest, RefusesACallerThatIsNoRankOfTheGroup) {
  EXPECT_THAT(CheckRequest(RuleRequest("fsdp:2"), 2, 2),
              FailsWith(kInvalidArgument, reason::kWrongRank));
}

TEST(RandomHex, HasTwoDigitsPerByteAndDiffers) {
  EXPECT_EQ(RandomHex(16).size(), 32u);
  EXPECT_NE(RandomHex(16), RandomHex(16));
}

}  // namespace
}  // namespace ckptd
