#include "server/group/follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <set>
#include <optional>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr std::chrono::milliseconds kTimeout{50};

// A leader in memory. Answers as the test wants, and counts joins.
class FakeLeader final : public LeaderLink {
 public:
  absl::StatusOr<JoinReply> Join(const MemberIdentity&,
                                 const std::vector<ResidentCheckpoint>& residents,
                                 Deadline) override {
    MutexLock lock(mutex_);
    ++joins_;
    residents_ = residents.size();
    changed_.NotifyAll();
    if (!join_answer_.ok()) return join_answer_;
    JoinReply reply;
    reply.epoch = 5;
    reply.incarnation = incarnation_;
    reply.version = version_;
    reply.secret = "secret of " + incarnation_;
    reply.heartbeat_interval = std::chrono::milliseconds(1);
    reply.heartbeat_timeout = kTimeout;
    return reply;
  }
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatCall& call,
                                           Deadline call_ends) override {
    MutexLock lock(mutex_);
    if (call.reading.has_value()) read_ = call.reading;
    ++beats_;
    changed_.NotifyAll();
    if (forgetful_) {
      forgetful_ = false;
      return absl::NotFoundError("who is that");
    }
    if (member_stands_still_) {
      member_stands_still_ = false;
      while (Clock::now() < call_ends + kTimeout) continue;
      return absl::DeadlineExceededError("no answer");
    }
    HeartbeatReply reply;
    reply.epoch = epoch_;
    reply.missing_ranks = missing_;
    reply.loads = loads_;
    if (call.members_epoch == epoch_) return reply;
    reply.members = {{2, second_}};
    if (call.members_epoch == 0) reply.members[0] = incarnation_;
    return reply;
  }
  absl::StatusOr<std::string> Propose(uint32_t, const LoadRequest&, Deadline) override {
    return "checkpoints/proposed";
  }
  absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string&, Deadline) override {
    return std::set<uint32_t>();
  }
  absl::Status CancelLoad(uint32_t rank, const std::string& name, Deadline) override {
    MutexLock lock(mutex_);
    cancelled_ = std::to_string(rank) + " " + name;
    return absl::OkStatus();
  }
  // The rank that cancelled, and the name.
  std::string cancelled() const {
    MutexLock lock(mutex_);
    return cancelled_;
  }

  void RefuseJoins(absl::Status answer) {
    MutexLock lock(mutex_);
    join_answer_ = std::move(answer);
  }
  void Restart() {
    MutexLock lock(mutex_);
    incarnation_ = "second";
    forgetful_ = true;
  }
  // As if the member had sent no heartbeat for too long.
  void GiveUp() {
    MutexLock lock(mutex_);
    forgetful_ = true;
  }
  // Makes the member's next heartbeat end long after its deadline.
  void HoldTheMember() {
    MutexLock lock(mutex_);
    member_stands_still_ = true;
    beats_ = 0;
  }
  bool WaitForBeats(int count) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, Soon(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return beats_ >= count;
    });
  }
  void Report(const std::string& name, const Progress& progress) {
    MutexLock lock(mutex_);
    loads_ = {{name, progress}};
  }
  void Miss(std::vector<uint32_t> ranks) {
    MutexLock lock(mutex_);
    missing_ = std::move(ranks);
  }
  bool WaitForJoins(int count) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, Soon(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return joins_ >= count;
    });
  }
  void RunVersion(std::string version) {
    MutexLock lock(mutex_);
    version_ = std::move(version);
  }
  // Rank 2 is a new process from now on.
  void ReplaceSecond() {
    MutexLock lock(mutex_);
    second_ = "another";
    ++epoch_;
  }
  bool WaitForReading(uint64_t storage_bytes) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, Soon(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return read_.has_value() && read_->done.read.storage_bytes == storage_bytes;
    });
  }
  size_t residents() const {
    MutexLock lock(mutex_);
    return residents_;
  }
  bool read_to_the_end() const {
    MutexLock lock(mutex_);
    return read_.has_value() && read_->ended;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int joins_ ABSL_GUARDED_BY(mutex_) = 0;
  int beats_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t residents_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string incarnation_ ABSL_GUARDED_BY(mutex_) = "first";
  bool forgetful_ ABSL_GUARDED_BY(mutex_) = false;
  bool member_stands_still_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status join_answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<std::string, Progress>> loads_ ABSL_GUARDED_BY(mutex_);
  std::string version_ ABSL_GUARDED_BY(mutex_);
  std::string second_ ABSL_GUARDED_BY(mutex_) = "one";
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 5;
  std::optional<ReadingNow> read_ ABSL_GUARDED_BY(mutex_);
  std::string cancelled_ ABSL_GUARDED_BY(mutex_);
};

class FollowerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Follower> Start() {
    MemberIdentity who;
    who.rank = 1;
    who.world_size = 2;
    who.version = version_;
    return std::make_unique<Follower>(
        Follower::Parts{catalog_, *memory_, leader_, [this](const std::string& secret) {
                          MutexLock lock(mutex_);
                          secret_ = secret;
                        },
                        reading_,
                        [this](uint32_t rank, const std::string& incarnation) {
                          MutexLock lock(mutex_);
                          departed_[rank] = incarnation;
                          changed_.NotifyAll();
                        },
                        kTimeout},
        who);
  }
  // A follower that is ready and loads "checkpoints/a", which the leader runs.
  std::unique_ptr<Follower> StartWithALoad() {
    auto follower = Start();
    EXPECT_TRUE(follower->WaitReady(Soon()));
    leader_->Report("checkpoints/a", {});  // first: a load that the leader does not know fails
    catalog_.Begin("checkpoints/a", RuleRequest());
    return follower;
  }
  std::string secret() {
    MutexLock lock(mutex_);
    return secret_;
  }

  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(2);
  Catalog catalog_{*memory_, 1, 2};
  std::shared_ptr<FakeLeader> leader_ = std::make_shared<FakeLeader>();
  ReadProgressPublisher reading_;
  std::string version_;
  Mutex mutex_;
  CondVar changed_;
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  MembershipDiff::Members departed_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(FollowerTest, IsReadyOnceItHasJoinedACompleteGroup) {
  const auto follower = Start();
  ASSERT_TRUE(follower->WaitReady(Soon()));
  EXPECT_EQ(follower->state().epoch, 5u);
  EXPECT_EQ(secret(), "secret of first");
}

TEST_F(FollowerTest, IsNotReadyWhileARankIsMissing) {
  leader_->Miss({3});
  const auto follower = Start();
  ASSERT_TRUE(leader_->WaitForJoins(1));
  EXPECT_FALSE(follower->WaitReady(Clock::now()));
}

TEST_F(FollowerTest, TellsTheLeaderWhatItHolds) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", RuleRequest()));
  const auto follower = Start();
  ASSERT_TRUE(follower->WaitReady(Soon()));
  EXPECT_EQ(leader_->residents(), 1u);
}

TEST_F(FollowerTest, KeepsTryingToJoinAndSaysWhyItHasNot) {
  leader_->RefuseJoins(absl::FailedPreconditionError("wrong job"));
  const auto follower = Start();
  ASSERT_TRUE(leader_->WaitForJoins(2));
  EXPECT_EQ(follower->state().detail, "wrong job");
  leader_->RefuseJoins(absl::OkStatus());
  EXPECT_TRUE(follower->WaitReady(Soon()));
}

TEST_F(FollowerTest, JoinsAgainWhenTheLeaderWasRestartedAndFailsWhatWasLoading) {
  const auto follower = StartWithALoad();
  leader_->Restart();
  ASSERT_TRUE(leader_->WaitForJoins(2));
  catalog_.watchers().WatchEnd("checkpoints/a", Soon());
  EXPECT_THAT(catalog_.Get("checkpoints/a").value().failure,
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  ASSERT_TRUE(follower->WaitReady(Soon()));
}

TEST_F(FollowerTest, ALoadThatEndedBecauseTheLeaderGaveThisRankUpSaysSo) {
  const auto follower = StartWithALoad();
  leader_->GiveUp();
  catalog_.watchers().WatchEnd("checkpoints/a", Soon());
  const absl::Status why = catalog_.Get("checkpoints/a").value().failure;
  EXPECT_THAT(why, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_EQ(FactsOf(why).at("rank"), "1");
}

TEST_F(FollowerTest, ALoadThatEndedBecauseTheLeaderWasLostNamesIt) {
  const auto follower = StartWithALoad();
  leader_->RefuseJoins(absl::UnavailableError("nobody listens"));
  leader_->GiveUp();
  catalog_.watchers().WatchEnd("checkpoints/a", Soon());
  EXPECT_EQ(FactsOf(catalog_.Get("checkpoints/a").value().failure).at("rank"), "0");
}

TEST_F(FollowerTest, AfterStandingStillItselfItDoesNotTakeTheLeaderForLost) {
  const auto follower = StartWithALoad();
  leader_->HoldTheMember();
  ASSERT_TRUE(leader_->WaitForBeats(2));
  EXPECT_EQ(catalog_.Get("checkpoints/a").value().state, CheckpointState::kLoading);
  EXPECT_EQ(follower->state().epoch, 5u);  // losing the leader raises it
}

TEST_F(FollowerTest, ShowsTheLeadersProgressUntilBytesMove) {
  catalog_.Begin("checkpoints/a", RuleRequest());
  Progress progress;
  progress.stage = Stage::kGathering;
  progress.waiting_ranks = {0};
  leader_->Report("checkpoints/a", progress);
  const auto follower = Start();
  uint64_t seen = 0;
  CheckpointInfo info;
  const Deadline deadline = Soon();
  while (info.progress.stage != Stage::kGathering && Clock::now() < deadline) {
    info = catalog_.watchers().Watch("checkpoints/a", seen, deadline).value();
  }
  EXPECT_THAT(info.progress.waiting_ranks, ::testing::ElementsAre(0));
}

TEST_F(FollowerTest, ShowsMoreBytesThanTheTransferHasReported) {
  catalog_.Begin("checkpoints/a", RuleRequest());
  Progress progress;
  progress.stage = Stage::kTransferring;
  progress.bytes_done = 10;
  catalog_.UpdateProgress("checkpoints/a", progress);
  progress.bytes_done = 30;
  leader_->Report("checkpoints/a", progress);
  const auto follower = Start();
  uint64_t seen = 0;
  uint64_t shown = 0;
  for (const Deadline deadline = Soon(); shown != 30 && Clock::now() < deadline;) {
    shown = catalog_.watchers().Watch("checkpoints/a", seen, deadline).value().progress.bytes_done;
  }
  EXPECT_EQ(shown, 30u);
}

TEST_F(FollowerTest, TellsTheLeaderHowFarItHasRead) {
  const auto counters = std::make_shared<TransferProgress>(0);
  counters->storage_bytes = 1;
  reading_.Begin("checkpoints/a", {}, counters);
  const auto follower = Start();
  EXPECT_TRUE(leader_->WaitForReading(1));
  counters->storage_bytes = 2;
  EXPECT_TRUE(leader_->WaitForReading(2));
}

TEST_F(FollowerTest, TellsTheLeaderThatItHasReadItsPart) {
  const auto follower = Start();
  ASSERT_TRUE(follower->WaitReady(Soon()));
  reading_.Begin("checkpoints/a", {}, std::make_shared<TransferProgress>(0));
  reading_.End(true);
  const Deadline end = Soon();
  while (reading_.Now().has_value() && Clock::now() < end) continue;
  EXPECT_FALSE(reading_.Now().has_value()) << "the leader was told";
  EXPECT_TRUE(leader_->read_to_the_end());
}

TEST(HeartbeatPause, LeavesTheLeaderTimeForThousandsOfMembers) {
  using std::chrono::milliseconds;
  const milliseconds interval(1000);
  EXPECT_EQ(Follower::HeartbeatPause(interval, true, 8), milliseconds(100));
  EXPECT_EQ(Follower::HeartbeatPause(interval, true, 2048), milliseconds(512));
  EXPECT_EQ(Follower::HeartbeatPause(interval, true, 8192), interval)
      << "never less often than without news";
  EXPECT_EQ(Follower::HeartbeatPause(milliseconds(20), true, 8), milliseconds(20));
  EXPECT_EQ(Follower::HeartbeatPause(interval, false, 8), interval);
}

TEST_F(FollowerTest, HearsThatTheProcessOfARankIsGone) {
  const auto follower = Start();
  ASSERT_TRUE(follower->WaitReady(Soon()));
  leader_->ReplaceSecond();
  MutexLock lock(mutex_);
  ASSERT_TRUE(changed_.WaitUntil(mutex_, Soon(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !departed_.empty();
  }));
  EXPECT_EQ(departed_, (MembershipDiff::Members{{2, "one"}}));
}

TEST_F(FollowerTest, DoesNotStayWithALeaderOfAnotherVersion) {
  version_ = "2.0.0";
  leader_->RunVersion("1.9.0");
  const auto follower = Start();
  ASSERT_TRUE(leader_->WaitForJoins(2));
  EXPECT_THAT(follower->state().detail,
              ::testing::HasSubstr("runs ckptd 1.9.0, rank 1 runs 2.0.0"));
  leader_->RunVersion("2.0.0");
  EXPECT_TRUE(follower->WaitReady(Soon()));
}

TEST_F(FollowerTest, FailsALoadThatTheLeaderNoLongerRuns) {
  leader_->Report("checkpoints/a", {});
  catalog_.Begin("checkpoints/a", RuleRequest());
  catalog_.Begin("checkpoints/b", RuleRequest());
  const auto follower = Start();
  catalog_.watchers().WatchEnd("checkpoints/b", Soon());
  EXPECT_THAT(catalog_.Get("checkpoints/b").value().failure,
              FailsWith(absl::StatusCode::kAborted, reason::kEpochChanged));
  EXPECT_EQ(catalog_.Get("checkpoints/a").value().state, CheckpointState::kLoading);
}

TEST_F(FollowerTest, ProposesThroughTheLeader) {
  const auto follower = Start();
  EXPECT_EQ(follower->Propose(RuleRequest(), Soon()).value(), "checkpoints/proposed");
}

TEST_F(FollowerTest, ALoadOfARankThatIsRefusedEndsLongBeforeItsDeadlineWithTheReason) {
  leader_->RefuseJoins(MakeError(absl::StatusCode::kFailedPrecondition, reason::kJoinRefused,
                                 "process 7 holds that rank"));
  const auto follower = Start();
  ASSERT_TRUE(leader_->WaitForJoins(2));
  const Deadline deadline = Soon();
  EXPECT_THAT(follower->Propose(RuleRequest(), deadline), Says("process 7 holds that rank"));
  EXPECT_LT(Clock::now(), deadline);
}

TEST_F(FollowerTest, ProposingBeforeItHasJoinedSaysWhyAtTheDeadline) {
  leader_->RefuseJoins(absl::FailedPreconditionError("wrong job"));
  const auto follower = Start();
  ASSERT_TRUE(leader_->WaitForJoins(2));
  const auto name = follower->Propose(RuleRequest(), Clock::now());
  EXPECT_THAT(name, FailsWith(absl::StatusCode::kUnavailable, reason::kRankMissing));
  EXPECT_THAT(name, Says("wrong job"));
}

TEST_F(FollowerTest, TheLeaderIsToldWhichLoadThisRankCancels) {
  const auto follower = Start();
  EXPECT_OK(follower->CancelLoad("checkpoints/a", Soon()));
  EXPECT_EQ(leader_->cancelled(), "1 checkpoints/a");
}

TEST_F(FollowerTest, ACallOfALeaderWhoseAnswerToTheJoinIsOnItsWayIsOfThisGroup) {
  const auto follower = Start();
  ASSERT_TRUE(follower->WaitReady(Soon()));
  leader_->RefuseJoins(absl::UnavailableError("on its way"));
  leader_->Restart();
  const Deadline end = Soon();
  while (follower->state().joined && Clock::now() < end) continue;
  ASSERT_EQ(follower->state().epoch, 6u) << "calls of the leader that is gone are of the past";
  auto current = std::async(std::launch::async, [&] { return follower->IsCurrent(5); });
  leader_->RefuseJoins(absl::OkStatus());
  EXPECT_TRUE(current.get());
}

TEST_F(FollowerTest, RefusesCallsOfAnOlderEpoch) {
  const auto follower = Start();
  ASSERT_TRUE(follower->WaitReady(Soon()));
  EXPECT_TRUE(follower->IsCurrent(6));
  EXPECT_TRUE(follower->IsCurrent(5));
  EXPECT_FALSE(follower->IsCurrent(4));
}

}  // namespace
}  // namespace ckptd
