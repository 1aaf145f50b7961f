#include "server/load/execute_fanout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/group/membership.h"
#include "server/load/error_priority.h"
#include "server/protocol/timing.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// What the streams of one member do, and a sign that something was sent.
struct Script {
  absl::Status open;
  std::atomic<bool> alive = true;  // false: Send says that the member is gone
  absl::Status finish;
  std::promise<void> sent;  // at the first Send
  bool silent = false;      // Finish does not return before Abort
  std::promise<absl::Status> aborted;
  std::function<void()> finishing;  // in Finish
  std::function<void()> on_abort;
};

class ScriptedStream final : public ExecuteStream {
 public:
  explicit ScriptedStream(Script& script) : script_(script) {}
  bool Send(const Progress&) override {
    if (!std::exchange(told_, true)) script_.sent.set_value();
    return script_.alive;
  }
  absl::StatusOr<ReadReport> Finish() override {
    if (script_.silent) return script_.aborted.get_future().get();
    if (script_.finishing) script_.finishing();
    CKPTD_RETURN_IF_ERROR(script_.finish);
    return ReadReport();
  }

 private:
  Script& script_;
  bool told_ = false;
};

class StreamOnlyLink final : public MemberLink {
 public:
  explicit StreamOnlyLink(Script& script) : script_(script) {}
  absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall&) override {
    CKPTD_RETURN_IF_ERROR(script_.open);
    return std::make_unique<ScriptedStream>(script_);
  }
  absl::StatusOr<PrepareReply> Prepare(const PrepareCall&, Deadline) override {
    return PrepareReply();
  }
  std::unique_ptr<TransferSink> OpenSink(const SinkCall&) override { return nullptr; }
  absl::Status Commit(const CommitCall&, Deadline) override { return absl::OkStatus(); }
  absl::Status Abort(const std::string&, const absl::Status& why, Deadline) override {
    script_.aborted.set_value(why);
    if (script_.on_abort) script_.on_abort();
    return absl::OkStatus();
  }
  absl::Status GiveBack(const std::string&, Deadline) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Holds(const std::string&, Deadline) override { return false; }
  absl::Status Probe(Deadline) override { return absl::OkStatus(); }

 private:
  Script& script_;
};

class ExecuteFanoutTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kPatience{50};

  std::unique_ptr<ExecuteFanout> Start() {
    return Start({{1, std::make_shared<StreamOnlyLink>(first_), read_, scatter_},
                  {4, std::make_shared<StreamOnlyLink>(second_), nullptr, scatter_}});
  }

  std::unique_ptr<ExecuteFanout> Start(std::vector<ExecuteFanout::Member> members) {
    return std::make_unique<ExecuteFanout>(
        std::move(members),
        ExecuteFanout::Load{1, "checkpoints/a", Soon(), kPatience, nullptr,
                            [this](const ReadReport& report) {
                              answered_.push_back(report.reader);
                              if (on_answer_) on_answer_();
                            },
                            [this] { return cancelled_; }},
        [this] { return progress_(); });
  }

  // Progress as given, until well past the patience the first member fails with late_.
  std::function<Progress()> FirstEndsLate(Progress progress) {
    first_.silent = true;
    return [this, progress, begun = Clock::now(), ended = false]() mutable {
      const bool late = Clock::now() - begun > 4 * kPatience;
      if (late && !std::exchange(ended, true)) first_.aborted.set_value(late_);
      return progress;
    };
  }

  const absl::Status late_ = absl::CancelledError("late");
  Script first_;
  Script second_;
  std::function<ReadOrder()> read_;  // the first member's
  std::function<ScatterCall()> scatter_;
  std::vector<uint32_t> answered_;
  std::function<void()> on_answer_;
  absl::Status cancelled_;
  std::function<Progress()> progress_ = [] { return Progress(); };
};

TEST_F(ExecuteFanoutTest, FinishesWhenAllMembersDo) {
  EXPECT_OK(Start()->Finish().second);
}

TEST_F(ExecuteFanoutTest, MembersHearThatItHasBegunHoweverSoonItIsFinished) {
  EXPECT_OK(Start()->Finish().second);
  EXPECT_EQ(first_.sent.get_future().wait_for(std::chrono::seconds(0)), std::future_status::ready);
  EXPECT_EQ(second_.sent.get_future().wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

TEST_F(ExecuteFanoutTest, AMemberThatCannotBeReachedBreaksItAtOnce) {
  second_.open = absl::UnavailableError("nobody there");
  const auto fanout = Start();
  EXPECT_EQ(fanout->broken().first, 4u);
  EXPECT_EQ(fanout->broken().second, second_.open);
}

TEST_F(ExecuteFanoutTest, PushesProgressToEveryMember) {
  const auto fanout = Start();
  first_.sent.get_future().wait();
  second_.sent.get_future().wait();
  EXPECT_OK(fanout->broken().second);
}

TEST_F(ExecuteFanoutTest, AMemberThatGoesAwayInTheMiddleBreaksItWithItsReason) {
  second_.alive = false;
  second_.finish = RankLost(4, "it went away");
  const auto fanout = Start();
  second_.sent.get_future().wait();
  const auto [rank, why] = fanout->Finish();
  EXPECT_EQ(rank, 4u);
  EXPECT_THAT(why, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
}

TEST_F(ExecuteFanoutTest, AStreamThatEndsEarlyWithoutAReasonIsStillAnError) {
  first_.alive = false;
  const auto fanout = Start();
  first_.sent.get_future().wait();
  EXPECT_FALSE(fanout->Finish().second.ok());
}

TEST_F(ExecuteFanoutTest, OfErrorsThatSayAsMuchTheFirstIsTold) {
  first_.finish = absl::InternalError("first");
  second_.finish = absl::InternalError("second");
  scatter_ = [] { return ScatterCall(); };
  std::promise<void> told;  // of the first
  second_.on_abort = [&told] { told.set_value(); };
  second_.finishing = [&told] { told.get_future().wait(); };
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 1u);
  EXPECT_EQ(why, first_.finish);
}

TEST_F(ExecuteFanoutTest, ACauseIsToldThoughWhatFollowsFromItCameFirst) {
  first_.finish = MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed, "a peer let go");
  second_.silent = true;
  const absl::Status cause =
      MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "an Xid");
  progress_ = [this, &cause, begun = Clock::now(), ended = false]() mutable {
    const bool late = Clock::now() - begun > timing::kPrimaryError / 4;
    if (late && !std::exchange(ended, true)) second_.aborted.set_value(cause);
    return Progress();
  };
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 4u);
  EXPECT_EQ(why, cause);
}

TEST_F(ExecuteFanoutTest, WithoutACauseOthersHearSoonOfWhatFollowsFromIt) {
  scatter_ = [] { return ScatterCall(); };
  first_.finish = MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed, "a peer let go");
  second_.silent = true;
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 1u);
  EXPECT_EQ(why, first_.finish) << "what the other one answers then is of no interest";
}

TEST_F(ExecuteFanoutTest, AStreamThatBreaksWithACauseIsWaitedForWhileAllAreRead) {
  first_.alive = false;
  first_.finish = MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed, "a peer let go");
  second_.finish = absl::ResourceExhaustedError("no room");
  const auto fanout = Start();
  first_.sent.get_future().wait();
  EXPECT_OK(fanout->broken().second) << "nobody is blamed for it yet";
  second_.alive = false;
  const auto [rank, why] = fanout->AwaitBroken();
  EXPECT_EQ(rank, 4u);
  EXPECT_EQ(why, second_.finish);
}

TEST_F(ExecuteFanoutTest, AStreamThatBreaksAloneIsWhatIsToldHoweverLittleItSays) {
  first_.alive = false;
  first_.finish = MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed, "a peer let go");
  const auto fanout = Start();
  first_.sent.get_future().wait();
  EXPECT_EQ(fanout->Finish().second, first_.finish);
}

TEST_F(ExecuteFanoutTest, WhomACommunicatorDoesNotReachThoughAllWasReadIsNamedAndLetGo) {
  scatter_ = [] { return ScatterCall(); };
  second_.silent = true;
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 4u);
  EXPECT_THAT(why, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_THAT(why.message(), ::testing::HasSubstr("rank 4"));
}

TEST_F(ExecuteFanoutTest, OfSeveralThatACommunicatorDoesNotReachNobodyIsBlamed) {
  scatter_ = [] { return ScatterCall(); };
  first_.silent = true;
  second_.silent = true;
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 0u);
  EXPECT_THAT(why.message(), ::testing::HasSubstr("ranks 1, 4"));
  EXPECT_EQ(FactsOf(why).count("rank"), 0u);
}

// The last that a reader did may be in its report alone.
TEST_F(ExecuteFanoutTest, AReaderThatHasAnsweredIsCountedBeforeOthersAreGivenUp) {
  scatter_ = [] { return ScatterCall(); };
  read_ = [] { return ReadOrder(); };
  second_.silent = true;
  Progress progress;
  progress.bytes_total = 2;
  progress_ = [this, &progress, begun = Clock::now()] {
    if (Clock::now() - begun > 1000 * kPatience) cancelled_ = late_;  // for ever, otherwise
    return progress;
  };
  on_answer_ = [&progress] { progress.bytes_done = 2; };
  const auto [rank, why] = Start()->Finish();
  EXPECT_EQ(rank, 4u) << why;
  EXPECT_EQ(answered_, std::vector<uint32_t>{1});
}

TEST_F(ExecuteFanoutTest, NobodyIsGivenUpWhileSomethingIsStillRead) {
  scatter_ = [] { return ScatterCall(); };
  second_.silent = true;
  Progress half;
  half.bytes_total = 2;
  half.bytes_done = 1;
  progress_ = FirstEndsLate(half);
  EXPECT_EQ(Start()->Finish().second, late_);
}

TEST_F(ExecuteFanoutTest, MembersThatStillWorkAreToldThatTheLoadIsCancelled) {
  scatter_ = [] { return ScatterCall(); };
  first_.silent = true;
  second_.silent = true;
  cancelled_ = absl::AbortedError("a mistake");
  EXPECT_EQ(Start()->Finish().second, cancelled_) << "none answers before it is told";
}

TEST_F(ExecuteFanoutTest, WhoReceivesInAnotherWayIsWaitedFor) {
  progress_ = FirstEndsLate({});
  EXPECT_EQ(Start()->Finish().second, late_);
}

// Members whose ends are waited for, counting them.
class Crowd {
 public:
  explicit Crowd(size_t size) : scripts_(size) {}

  std::vector<ExecuteFanout::Member> members() {
    std::vector<ExecuteFanout::Member> members;
    for (uint32_t rank = 0; rank < scripts_.size(); ++rank) {
      members.push_back({rank, std::make_shared<StreamOnlyLink>(scripts_[rank])});
      scripts_[rank].finishing = [this] {
        MutexLock lock(mutex_);
        most_ = std::max(most_, ++waiting_);
        changed_.Wait(mutex_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_; });
        --waiting_;
      };
    }
    return members;
  }
  Script& operator[](size_t rank) { return scripts_[rank]; }
  void End() {
    MutexLock lock(mutex_);
    end_ = true;
    changed_.NotifyAll();
  }
  size_t most() {
    MutexLock lock(mutex_);
    return most_;
  }

 private:
  std::vector<Script> scripts_;
  Mutex mutex_;
  CondVar changed_;
  bool end_ ABSL_GUARDED_BY(mutex_) = false;
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t most_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST_F(ExecuteFanoutTest, HoweverManyMembersThereAreABoundedNumberOfThreadsWaitsForThem) {
  Crowd crowd(kMostCalls + 100);
  progress_ = [&crowd, since = Clock::now()]() mutable {
    if (crowd.most() < kMostCalls) since = Clock::now();
    if (Clock::now() - since > 4 * kPatience) crowd.End();  // more had begun by then
    return Progress();
  };
  EXPECT_OK(Start(crowd.members())->Finish().second);
  EXPECT_EQ(crowd.most(), kMostCalls);
}

TEST_F(ExecuteFanoutTest, AMemberThatFailsIsHeardOfWhileOthersAreStillWaitedFor) {
  Crowd crowd(kMostCalls + 100);
  Script& last = crowd[kMostCalls + 99];
  last.finish = absl::InternalError("the last");
  std::vector<ExecuteFanout::Member> members = crowd.members();
  last.finishing = nullptr;
  for (auto& member : members) member.scatter = [] { return ScatterCall(); };
  for (size_t rank = 0; rank < kMostCalls + 99; ++rank) {
    crowd[rank].on_abort = [&crowd] { crowd.End(); };
  }
  progress_ = [&, begun = Clock::now()] {
    if (crowd.most() >= kMostCalls) last.alive = false;
    if (Clock::now() - begun > 1000 * kPatience) cancelled_ = late_;  // for ever, otherwise
    Progress half;  // so that nobody stands still
    half.bytes_total = 2;
    return half;
  };
  const auto [rank, why] = Start(std::move(members))->Finish();
  EXPECT_EQ(rank, kMostCalls + 99);
  EXPECT_EQ(why, last.finish);
}

}  // namespace
}  // namespace ckptd
