// The small parts of the core: the worker, progress.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "server/group/membership_diff.h"
#include "server/load/load_log.h"
#include "server/load/pending_loads.h"
#include "server/load/progress_meter.h"
#include "server/load/worker.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

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

// A task that is outside until its storage answers.
class Hanging {
 public:
  Hanging(Worker& worker, bool lets_pass, std::function<void()> back = [] {}) {
    ended_ = worker.Submit([this, &worker, lets_pass, back] {
      {
        const Worker::Outside outside(worker, [lets_pass] { return lets_pass; });
        answer_.get_future().wait();
      }
      back();
    });
  }
  void Answer() { answer_.set_value(); }
  void AwaitEnd() { ended_.get(); }

 private:
  std::promise<void> answer_;
  std::future<void> ended_;
};

TEST(Worker, TasksPassOneWhoseStorageStandsStill) {
  Worker worker;
  Hanging first(worker, true);
  Hanging second(worker, true);
  EXPECT_EQ(worker.Submit([] { return 3; }).get(), 3);
  first.Answer();
  first.AwaitEnd();
  second.Answer();
  worker.WaitUntilIdle();
  second.AwaitEnd();
}

TEST(Worker, ATaskThatWasPassedGoesOnWhenNoOtherHasTheTurn) {
  std::vector<int> order;  // unguarded: the turn guards it
  std::promise<void> begun;
  std::promise<void> hold;
  Worker worker;
  Hanging first(worker, true, [&order] { order.push_back(1); });
  worker.Post([&] {
    begun.set_value();
    hold.get_future().wait();
    order.push_back(2);
  });
  begun.get_future().wait();
  worker.Post([&order] { order.push_back(3); });
  first.Answer();
  hold.set_value();
  worker.WaitUntilIdle();
  first.AwaitEnd();
  ASSERT_EQ(order.size(), 3u);
  EXPECT_EQ(order.front(), 2);
}

TEST(Worker, ATaskThatDoesNotStandStillIsWaitedFor) {
  std::vector<int> order;
  Worker worker;
  Hanging first(worker, false, [&order] { order.push_back(1); });
  const auto second = worker.Submit([&order] { order.push_back(2); });
  EXPECT_EQ(second.wait_for(std::chrono::milliseconds(250)), std::future_status::timeout);
  first.Answer();
  second.wait();
  first.AwaitEnd();
  EXPECT_THAT(order, ::testing::ElementsAre(1, 2));
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

// As after a restart, when members tell the leader all that they hold.
TEST(PendingLoads, OfSeveralCheckpointsTheOneWhoseFilesAreUnchangedIsJoined) {
  PendingLoads pending_loads(1);
  std::vector<ResidentCheckpoint> residents;
  for (const char* const name : {"checkpoints/a", "checkpoints/b", "checkpoints/c"}) {
    ResidentCheckpoint& one = residents.emplace_back();
    one.name = name;
    one.load_key = LoadKey(RankRequest(0, 1));
    one.files = {{name, 1, "3", "5", "2", 4}};
    one.request_digests = {RequestDigest(RankRequest(0, 1))};
  }
  pending_loads.SetResidents(0, 1, residents);
  const Proposal proposal(0, RankRequest(0, 1));
  EXPECT_EQ(pending_loads.FilesToCheck(proposal).value()[0].path, "checkpoints/a");
  EXPECT_FALSE(pending_loads.Propose(proposal, false, Clock::now()).value().has_value());
  EXPECT_EQ(pending_loads.FilesToCheck(proposal).value()[0].path, "checkpoints/b");
  EXPECT_EQ(pending_loads.Propose(proposal, true, Clock::now()).value(), "checkpoints/b");
}

TEST(PendingLoads, WhereTheFilesOfAllHaveChangedANewOneIsBegun) {
  PendingLoads pending_loads(1);
  ResidentCheckpoint only;
  only.name = "checkpoints/a";
  only.load_key = LoadKey(RankRequest(0, 1));
  only.request_digests = {RequestDigest(RankRequest(0, 1))};
  pending_loads.SetResidents(0, 1, {only});
  const auto name = pending_loads.Propose(Proposal(0, RankRequest(0, 1)), false, Clock::now()).value();
  EXPECT_TRUE(name.has_value() && *name != "checkpoints/a");
}

// A report of rank `reader`, which has filled each of `ranks` with so many bytes.
ReadReport Report(uint32_t reader, uint64_t storage_bytes,
                  const std::vector<std::pair<uint32_t, uint64_t>>& ranks) {
  ReadReport report;
  report.reader = reader;
  report.read.storage_bytes = storage_bytes;
  for (const auto& [rank, bytes] : ranks) report.filled.push_back({rank, bytes, false, {}});
  return report;
}

TEST(LoadLog, SaysHowLongALoadAndItsStagesTook) {
  Progress last;
  last.bytes_done = 297'000'000;
  last.stages = {{Stage::kOpening, std::chrono::milliseconds(10)},
                 {Stage::kPlanning, std::chrono::microseconds(20)},
                 {Stage::kTransferring, std::chrono::milliseconds(1200)}};
  EXPECT_EQ(DescribeEnd(absl::OkStatus(), last),
            "loaded 297.0 MB in 1.210 s (opening 0.010, transferring 1.200)");
  EXPECT_EQ(DescribeEnd(absl::AbortedError("no"), {}), "failed after 0.0 MB in 0.000 s");
}

TEST(ProgressMeter, CountsATransferAndNamesTheRankThatMissesMost) {
  TransferProgress counters(3);
  counters.done[0] = 100;
  counters.done[1] = 20;
  counters.done[2] = 60;
  counters.storage_bytes = 110;
  counters.mapped_bytes = 70;
  counters.direct_bytes = 40;
  ProgressMeter meter;
  meter.Expect({{0, 100}, {1, 100}, {4, 100}});
  meter.Attach(Report(0, 0, {{0, 0}, {1, 0}, {4, 0}}), counters);
  const Progress progress = meter.Read();
  EXPECT_EQ(progress.bytes_total, 300u);
  EXPECT_EQ(progress.bytes_done, 180u);
  EXPECT_EQ(progress.sent_bytes, 80u);  // the reader's own part is not sent
  EXPECT_EQ(progress.read.storage_bytes, 110u);
  EXPECT_EQ(progress.read.mapped_bytes, 70u);
  EXPECT_EQ(progress.read.direct_bytes, 40u);
  EXPECT_EQ(progress.slowest_rank, 1);
}

TEST(ProgressMeter, NamesTheSlowestFileOfAllReaders) {
  ProgressMeter meter;
  EXPECT_EQ(meter.Read().slowest_file.path, "");
  for (const auto& [reader, file] : {std::pair{0u, FileRate{"/a", 30}}, {1u, FileRate{"/b", 20}},
                                     {2u, FileRate{}}, {3u, FileRate{"/c", 25}}}) {
    ReadReport report = Report(reader, 0, {});
    report.slowest_file = file;
    meter.Update(report);
  }
  EXPECT_EQ(meter.Read().slowest_file.path, "/b");
}

TEST(ProgressMeter, CountsTheFileTimesOfItsOwnTransfer) {
  TransferProgress counters(0);
  FileTimes::Reader thread(counters.files);
  thread.Begin(0, "/stuck", Clock::now() - FileTimes::kStalled);
  ProgressMeter meter;
  meter.Attach(Report(0, 0, {}), counters);
  EXPECT_EQ(meter.Read().slowest_file.path, "/stuck");
}

TEST(ProgressMeter, NoRankIsSlowestWhenAllIsDone) {
  ProgressMeter meter;
  meter.Expect({{0, 100}});
  meter.Update(Report(0, 100, {{0, 100}}));
  EXPECT_EQ(meter.Read().slowest_rank, -1);
}

TEST(ProgressMeter, KeepsTheLastCountsOnceDetached) {
  ProgressMeter meter;
  meter.Expect({{0, 100}});
  {
    TransferProgress counters(1);
    meter.Attach(Report(0, 0, {{0, 0}}), counters);
    counters.done[0] = 100;
    meter.Detach();
  }
  EXPECT_EQ(meter.Read().bytes_done, 100u);
}

TEST(ProgressMeter, AddsUpWhatSeveralReadersHaveDone) {
  ProgressMeter meter;
  meter.Expect({{0, 100}, {1, 100}});
  meter.Update(Report(0, 60, {{0, 30}, {1, 30}}));
  meter.Update(Report(1, 50, {{0, 40}, {1, 10}}));
  const Progress progress = meter.Read();
  EXPECT_EQ(progress.bytes_done, 110u);
  EXPECT_EQ(progress.read.storage_bytes, 110u);
  EXPECT_EQ(progress.sent_bytes, 70u);
  EXPECT_EQ(progress.slowest_rank, 1);
}

TEST(ProgressMeter, NeverGoesBack) {
  ProgressMeter meter;
  meter.Expect({{1, 100}});
  meter.Update(Report(1, 80, {{1, 80}}));
  meter.Update(Report(1, 50, {{1, 50}}));  // overtaken on its way
  EXPECT_EQ(meter.Read().bytes_done, 80u);
}

TEST(ProgressMeter, BelievesNoReportThatARankGotMoreThanItGets) {
  ProgressMeter meter;
  meter.Expect({{1, 100}});
  meter.Update(Report(1, 1, {{1, UINT64_MAX}, {7, 5}}));
  EXPECT_EQ(meter.Read().bytes_done, 100u);
}

TEST(ProgressMeter, NamesTheRanksThatGotStreams) {
  ProgressMeter meter;
  meter.Expect({{1, 100}, {2, 100}});
  ReadReport report = Report(0, 1, {{1, 1}, {2, 1}});
  report.filled[1].streamed = true;
  meter.Update(report);
  EXPECT_THAT(meter.Read().streamed_ranks, ::testing::ElementsAre(2));
}

TEST(MembershipDiff, NamesWhoLeftAndWhoWasReplacedAlsoWhereOnlyChangesAreTold) {
  MembershipDiff presence;
  presence.Update({{0, "a"}, {1, "b"}, {2, "c"}});
  EXPECT_EQ(presence.Merge({{1, "new"}, {2, ""}, {3, "d"}}), (MembershipDiff::Members{{1, "b"}, {2, "c"}}));
  EXPECT_EQ(presence.Merge({{2, "again"}}), MembershipDiff::Members());
  EXPECT_EQ(presence.Merge({{2, "again"}}), MembershipDiff::Members());
  EXPECT_EQ(presence.Update({{0, "a"}}),
            (MembershipDiff::Members{{1, "new"}, {2, "again"}, {3, "d"}}));
}

TEST(MembershipDiff, NamesWhoLeftAndWhoWasReplaced) {
  MembershipDiff presence;
  EXPECT_THAT(presence.Update({{0, "a"}, {1, "b"}, {2, "c"}}), ::testing::IsEmpty());
  EXPECT_EQ(presence.Update({{0, "a"}, {1, "new"}}), (MembershipDiff::Members{{1, "b"}, {2, "c"}}));
  EXPECT_THAT(presence.Update({{0, "a"}, {1, "new"}, {2, "c"}}), ::testing::IsEmpty());
}

TEST(ReadProgressPublisher, ShowsHowFarItIsWhileItLasts) {
  ReadProgressPublisher reading;
  EXPECT_FALSE(reading.Now().has_value());
  const auto counters = std::make_shared<TransferProgress>(1);
  reading.Begin("checkpoints/a", Report(3, 0, {{5, 0}}), counters);
  counters->done[0] = 7;
  counters->storage_bytes = 9;
  const std::optional<ReadingNow> now = reading.Now();
  ASSERT_TRUE(now.has_value());
  EXPECT_EQ(now->name, "checkpoints/a");
  EXPECT_EQ(now->done.reader, 3u);
  EXPECT_EQ(now->done.read.storage_bytes, 9u);
  EXPECT_EQ(now->done.filled.at(0).bytes, 7u);
  EXPECT_FALSE(now->ended);
  reading.NoteDelivered(*now);
  EXPECT_TRUE(reading.Now().has_value());
}

TEST(ReadProgressPublisher, ShowsItsEndUntilThatWasTold) {
  ReadProgressPublisher reading;
  const auto counters = std::make_shared<TransferProgress>(1);
  reading.Begin("checkpoints/a", Report(3, 0, {{5, 0}}), counters);
  const ReadingNow before = reading.Now().value();
  counters->exchanges = 4;
  reading.End("checkpoints/a", true);
  reading.NoteDelivered(before);
  const std::optional<ReadingNow> end = reading.Now();
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->ended);
  EXPECT_EQ(end->done.exchanges, 4u);
  reading.NoteDelivered(*end);
  EXPECT_FALSE(reading.Now().has_value());
}

TEST(ReadProgressPublisher, WhatFailedIsShownNoLonger) {
  ReadProgressPublisher reading;
  reading.Begin("checkpoints/a", {}, std::make_shared<TransferProgress>(0));
  reading.End("checkpoints/a", false);
  EXPECT_FALSE(reading.Now().has_value());
}

TEST(ReadProgressPublisher, TheEndOfALoadThatWasPassedIsNotThatOfAnother) {
  ReadProgressPublisher reading;
  reading.Begin("checkpoints/a", {}, std::make_shared<TransferProgress>(0));
  reading.Begin("checkpoints/b", {}, std::make_shared<TransferProgress>(0));
  reading.End("checkpoints/a", false);
  ASSERT_TRUE(reading.Now().has_value());
  EXPECT_EQ(reading.Now()->name, "checkpoints/b");
}

TEST(ReadProgressPublisher, OfAnotherLoadNothingWasToldYet) {
  ReadProgressPublisher reading;
  reading.Begin("checkpoints/a", {}, std::make_shared<TransferProgress>(0));
  reading.End("checkpoints/a", true);
  const ReadingNow first = reading.Now().value();
  reading.Begin("checkpoints/b", {}, std::make_shared<TransferProgress>(0));
  reading.End("checkpoints/b", true);
  reading.NoteDelivered(first);
  EXPECT_TRUE(reading.Now().has_value());
}

TEST(RandomHex, HasTwoDigitsPerByteAndDiffers) {
  EXPECT_EQ(RandomHex(16).size(), 32u);
  EXPECT_NE(RandomHex(16), RandomHex(16));
}

}  // namespace
}  // namespace ckptd
