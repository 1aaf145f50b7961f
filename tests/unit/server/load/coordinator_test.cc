#include "server/load/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/open.h"
#include "tests/testing/as_guest.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

// What an observer hears of loads, in its order.
class LoadRecorder final : public LoadObserver {
 public:
  void OnProgress(const std::string& name, const Progress& progress) override {
    Note(name, std::string(NameOf(progress.stage)));
  }
  void OnEnded(const std::string& name, const absl::Status& status, const Progress&) override {
    Note(name, status.ok() ? "loaded" : ReasonOf(status));
  }
  // Waits for that line.
  std::vector<std::string> LinesUntil(const std::string& name, const std::string& last) {
    MutexLock lock(mutex_);
    EXPECT_TRUE(changed_.WaitUntil(mutex_, Soon(), [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      const auto& lines = lines_[name];
      return !lines.empty() && lines.back() == last;
    }));
    return lines_[name];
  }

 private:
  void Note(const std::string& name, const std::string& line) {
    MutexLock lock(mutex_);
    auto& lines = lines_[name];
    if (lines.empty() || lines.back() != line) lines.push_back(line);
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::vector<std::string>> lines_ ABSL_GUARDED_BY(mutex_);
};

class CoordinatorTest : public ::testing::Test {
 protected:
  std::unique_ptr<Coordinator> Start(ReaderPolicy reader = ReaderPolicy::kRank0) {
    return std::make_unique<Coordinator>(Coordinator::Parts{
        group_.rank(0).catalog, group_.membership(), group_.peers(), load_worker_, lookups_, stalls_,
        {.threads = 1}, reader, nullptr, nullptr, {&recorder_}});
  }
  LoadRequest Rules() { return RuleRequest("fsdp:2", source_.path()); }
  LoadRequest Statement(uint32_t rank, const std::string& tensor = "a") {
    LoadRequest request = RankRequest(rank, 2, tensor);
    request.source = source_.path();
    return request;
  }
  // The state in which the load ends on `rank`. Its catalog must know the name.
  CheckpointInfo EndOf(uint32_t rank, const std::string& name) {
    group_.rank(rank).catalog.watchers().WatchEnd(name, Soon());
    return group_.rank(rank).catalog.Get(name).value();
  }

  HeartbeatCall Beat(uint32_t rank) {
    HeartbeatCall call;
    call.rank = rank;
    call.incarnation = group_.Identity(rank).incarnation;
    return call;
  }

  // The first Prepare of rank 1 says that it is there (prepares_) and waits (go_on_).
  void HoldFirstPrepare() {
    group_.rank(1).link->on_prepare = [this, first = true]() mutable {
      if (std::exchange(first, false)) {
        prepares_.set_value();
        go_on_.get_future().wait();
      }
      return absl::OkStatus();
    };
  }

  std::promise<void> prepares_;
  std::promise<void> go_on_;
  LoadRecorder recorder_;
  SmallSource source_;
  GroupInProcess group_{2};
  SourceChecker lookups_{[](const CheckpointIndex& index, const SourceAccess& access) {
    return index.files.empty() ? Recognise(index.source, access) : CheckUnchanged(index, access);
  }};
  StorageStalls stalls_;
  Worker load_worker_;
  std::unique_ptr<Coordinator> coordinator_ = Start();
};

TEST_F(CoordinatorTest, OneProposalOfRulesLoadsEveryRank) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  EXPECT_EQ(EndOf(1, name).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, AGuestThatMayNoLongerReadIsToldSoAndTheLoadStays) {
  const std::string folder = std::filesystem::path(source_.path()).parent_path();
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(source_.path().c_str(), 0644), 0);
  LoadRequest request = Rules();
  request.guest = SomeGuest();
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, request));
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  load_worker_.Submit([] {}).wait();  // then the leader has noted who holds it
  ASSERT_EQ(::chmod(folder.c_str(), 0700), 0);
  EXPECT_THAT(coordinator_->Propose(1, request),
              FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceForbidden));
  ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
  EXPECT_EQ(coordinator_->Propose(1, request).value(), name);
}

TEST_F(CoordinatorTest, AMemberThatWasPassedFilesMayComeBeforeThoseOfRankZero) {
  LoadRequest request = Statement(1);
  request.guest = SomeGuest();
  request.source = "/of/the/guest.safetensors";
  EXPECT_THAT(coordinator_->Propose(1, request),
              FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  request.passed = true;
  EXPECT_OK(coordinator_->Propose(1, request));
}

TEST_F(CoordinatorTest, ObserversHearOfEveryStageAndOnceOfTheEnd) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  const std::vector<std::string> lines = recorder_.LinesUntil(name, "loaded");
  // The pending load may be seen before it is taken.
  EXPECT_THAT(std::vector(std::find(lines.begin(), lines.end(), "queued"), lines.end()),
              ::testing::ElementsAre("queued", "opening", "planning", "allocating", "transferring",
                                     "publishing", "loaded"));
}

TEST_F(CoordinatorTest, ObserversHearWhyALoadHasFailed) {
  group_.rank(1).link->on_commit = [] {
    return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch, "a flipped bit");
  };
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  recorder_.LinesUntil(name, reason::kDigestMismatch);
}

TEST_F(CoordinatorTest, AskedWhoLacksAShardItAsksAllRanksNow) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  EndOf(0, name);
  EndOf(1, name);
  EXPECT_THAT(coordinator_->FindMissing(name), ::testing::IsEmpty());
  ASSERT_OK(group_.rank(1).catalog.Unload(name, false));
  EXPECT_THAT(coordinator_->FindMissing(name), ::testing::ElementsAre(1));
  group_.Drop(1);
  EXPECT_THAT(coordinator_->FindMissing(name), ::testing::ElementsAre(1));
}

TEST_F(CoordinatorTest, ARankThatIsAboutToShowItsShardDoesNotLackIt) {
  std::promise<void> go_on;
  group_.rank(1).link->on_commit = [&go_on] {
    go_on.get_future().wait();
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  auto missing = std::async(std::launch::async, [&] { return coordinator_->FindMissing(name); });
  EXPECT_EQ(missing.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  go_on.set_value();
  EXPECT_THAT(missing.get(), ::testing::IsEmpty());
}

TEST_F(CoordinatorTest, AHeartbeatTellsOnHowManyRanksACheckpointIs) {
  HeartbeatCall call = Beat(1);
  call.held = {"checkpoints/a", "checkpoints/b"};
  ASSERT_OK(MakeActive(group_.rank(0).catalog, "checkpoints/b", Rules()));
  std::map<std::string, uint32_t> told;
  for (const Deadline end = Soon(); told["checkpoints/b"] != 2 && Clock::now() < end;) {
    ASSERT_OK_AND_ASSIGN(const HeartbeatReply reply, coordinator_->Heartbeat(call));
    told = reply.residences;
  }
  EXPECT_EQ(told["checkpoints/a"], 1u);
  EXPECT_EQ(told["checkpoints/b"], 2u);
}

TEST_F(CoordinatorTest, LoadsOnceAllRanksHaveStatedTheirTensors) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Statement(0)));
  ASSERT_OK(coordinator_->Propose(1, Statement(1)));
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  EXPECT_EQ(EndOf(1, name).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, AHeartbeatTellsWhoIsWaitedFor) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(1, Statement(1)));
  ASSERT_OK_AND_ASSIGN(const HeartbeatReply reply, coordinator_->Heartbeat(Beat(1)));
  ASSERT_EQ(reply.loads.size(), 1u);
  EXPECT_EQ(reply.loads[0].first, name);
  EXPECT_EQ(reply.loads[0].second.stage, Stage::kGathering);
  EXPECT_THAT(reply.loads[0].second.waiting_ranks, ::testing::ElementsAre(0));
}

TEST_F(CoordinatorTest, ALoadThatNoRoundRunsIsFailed) {
  group_.rank(0).catalog.Begin("checkpoints/orphan", Rules());
  EXPECT_THAT(EndOf(0, "checkpoints/orphan").failure,
              FailsWith(absl::StatusCode::kAborted, reason::kEpochChanged));
}

TEST_F(CoordinatorTest, AHeartbeatNamesEveryLoadThatRuns) {
  std::promise<void> go_on;
  load_worker_.Post([held = go_on.get_future().share()] { held.wait(); });
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(1, Rules()));
  // Rank 0 does not know it before it prepares: first the pending load waits, then it is queued.
  Stage stage = Stage::kGathering;
  for (const Deadline end = Soon(); stage == Stage::kGathering && Clock::now() < end;) {
    const auto reply = coordinator_->Heartbeat(Beat(1));
    ASSERT_OK(reply.status());
    ASSERT_EQ(reply->loads.size(), 1u);
    EXPECT_EQ(reply->loads[0].first, name);
    stage = reply->loads[0].second.stage;
  }
  EXPECT_EQ(stage, Stage::kQueued);
  go_on.set_value();
}

TEST_F(CoordinatorTest, ALoadThatWaitsForAnotherOneIsShownAsQueued) {
  std::promise<void> go_on;
  load_worker_.Post([held = go_on.get_future().share()] { held.wait(); });
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  Stage stage = Stage::kUnspecified;
  uint64_t seen = 0;
  for (const Deadline end = Soon(); stage != Stage::kQueued && Clock::now() < end;) {
    stage = group_.rank(0).catalog.watchers().Watch(name, seen, end).value().progress.stage;
  }
  EXPECT_EQ(stage, Stage::kQueued);
  go_on.set_value();
}

TEST_F(CoordinatorTest, AHeartbeatNamesTheMembersToWhomKnowsThoseOfAnotherEpoch) {
  HeartbeatCall call = Beat(1);
  ASSERT_OK_AND_ASSIGN(const HeartbeatReply reply, coordinator_->Heartbeat(call));
  EXPECT_EQ(reply.members.size(), 2u);
  EXPECT_EQ(reply.members.at(0), group_.Identity(0).incarnation);
  EXPECT_EQ(reply.members.at(1), group_.Identity(1).incarnation);
  call.members_epoch = reply.epoch;
  EXPECT_TRUE(coordinator_->Heartbeat(call).value().members.empty());
}

TEST_F(CoordinatorTest, WhatAMemberHasReadIsSeenBeforeItIsDone) {
  constexpr uint64_t kFar = uint64_t{1} << 40;  // more than there is to read
  coordinator_.reset();
  coordinator_ = Start(ReaderPolicy::kAll);
  Catalog& leaders = group_.rank(0).catalog;
  const auto read = group_.rank(1).link->read;
  group_.rank(1).link->read = [&](const ExecuteCall& call) {
    HeartbeatCall beat = Beat(1);
    beat.reading = ReadingNow{call.name, {}};
    beat.reading->done.read.storage_bytes = kFar;
    EXPECT_OK(coordinator_->Heartbeat(beat).status());
    uint64_t seen = 0;
    uint64_t shown = 0;
    for (const Deadline end = Soon(); shown < kFar && Clock::now() < end;) {
      shown = leaders.watchers().Watch(call.name, seen, end).value().progress.read.storage_bytes;
    }
    EXPECT_GE(shown, kFar);
    return read(call);
  };
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, WhoAsksAfterTheGroupHasChangedJoinsNoLoadThatBeganBefore) {
  HoldFirstPrepare();
  ASSERT_OK_AND_ASSIGN(const std::string before, coordinator_->Propose(0, Rules()));
  prepares_.get_future().wait();
  EXPECT_FALSE(coordinator_->IsOutOfDate(before));
  group_.Drop(1);
  group_.Join(1);
  EXPECT_TRUE(coordinator_->IsOutOfDate(before));
  ASSERT_OK_AND_ASSIGN(const std::string after, coordinator_->Propose(0, Rules()));
  go_on_.set_value();
  EXPECT_EQ(EndOf(0, before).state, CheckpointState::kFailed);
  EXPECT_EQ(EndOf(0, after).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, ACancelledLoadThatWaitsFailsAtOnceWithThatReason) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Statement(0)));
  ASSERT_OK(coordinator_->CancelFor(1, name));
  const CheckpointInfo info = EndOf(0, name);
  EXPECT_THAT(info.failure, FailsWith(absl::StatusCode::kAborted, reason::kLoadCancelled));
  EXPECT_THAT(info.failure, Says("unloaded at rank 1 while it was loading"));
}

TEST_F(CoordinatorTest, ACancelledLoadThatIsQueuedTouchesNoRank) {
  std::promise<void> go_on;
  load_worker_.Post([held = go_on.get_future().share()] { held.wait(); });
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  uint64_t seen = 0;
  while (group_.rank(0).catalog.watchers().Watch(name, seen, Soon()).value().progress.stage != Stage::kQueued) {
  }
  ASSERT_OK(coordinator_->CancelFor(0, name));
  EXPECT_THAT(EndOf(0, name).failure,
              FailsWith(absl::StatusCode::kAborted, reason::kLoadCancelled))
      << "while the other one still runs";
  go_on.set_value();
  load_worker_.Submit([] {}).wait();
  EXPECT_EQ(group_.rank(1).link->prepared(), 0);
}

TEST_F(CoordinatorTest, ALoadWhoseTimePassesBehindAnotherOneFailsThen) {
  std::promise<void> go_on;
  load_worker_.Post([held = go_on.get_future().share()] { held.wait(); });  // its storage does not answer
  LoadRequest request = Rules();
  request.timeout = std::chrono::milliseconds(300);
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, request));
  const CheckpointInfo info = EndOf(0, name);
  EXPECT_THAT(info.failure, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_THAT(info.failure, Says("the timeout passed while it waited for its turn"));
  ASSERT_OK_AND_ASSIGN(const std::string next, coordinator_->Propose(0, Rules()));
  EXPECT_NE(next, name);
  go_on.set_value();
  EXPECT_EQ(EndOf(0, next).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, WhoHasNotAnsweredWhenTheTimeIsOverStaysInTheGroup) {
  group_.rank(1).link->on_prepare = [] {
    for (const auto end = Clock::now() + std::chrono::milliseconds(50); Clock::now() < end;) {
    }
    return RankLost(1, "it did not answer in time");  // as a link says of a call that ended
  };
  LoadRequest request = Rules();
  request.timeout = std::chrono::milliseconds(40);
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, request));
  EXPECT_THAT(EndOf(0, name).failure,
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_THAT(group_.membership().MissingRanks(), ::testing::IsEmpty());
}

TEST_F(CoordinatorTest, ACancelledLoadThatRunsFailsOnEveryRankAndTheNextOneIsAnother) {
  HoldFirstPrepare();
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  prepares_.get_future().wait();
  ASSERT_OK(coordinator_->CancelFor(1, name));
  ASSERT_OK_AND_ASSIGN(const std::string next, coordinator_->Propose(0, Rules()));
  go_on_.set_value();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(EndOf(rank, name).failure,
                FailsWith(absl::StatusCode::kAborted, reason::kLoadCancelled));
  }
  EXPECT_EQ(EndOf(0, next).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, ALoadIsCancelledWhileBytesMove) {
  std::atomic<bool> first = true;
  group_.rank(1).link->on_execute = [&] {
    if (first.exchange(false)) {
      EXPECT_OK(coordinator_->CancelFor(1, group_.rank(0).catalog.List().at(0).name));
    }
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(EndOf(rank, name).failure,
                FailsWith(absl::StatusCode::kAborted, reason::kLoadCancelled));
  }
}

TEST_F(CoordinatorTest, ARankThatThisGroupHasNotCancelsNothing) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Statement(0)));
  EXPECT_THAT(coordinator_->CancelFor(2, name),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kWrongRank));
  EXPECT_EQ(group_.rank(0).catalog.Get(name).value().state, CheckpointState::kLoading);
}

TEST_F(CoordinatorTest, AStatementThatNeverComesFailsTheLoadAndNamesItsRank) {
  LoadRequest request = Statement(0);
  request.timeout = std::chrono::milliseconds(1);
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, request));
  const CheckpointInfo info = EndOf(0, name);
  EXPECT_THAT(info.failure, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing));
  EXPECT_THAT(info.failure, Says("no trainer of rank 1 has stated"));
}

TEST_F(CoordinatorTest, ADaemonThatNeverJoinsFailsTheLoadAndNamesItsRank) {
  group_.Drop(1);
  LoadRequest request = Rules();
  request.timeout = std::chrono::milliseconds(1);
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, request));
  const CheckpointInfo info = EndOf(0, name);
  EXPECT_THAT(info.failure, FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing));
  EXPECT_EQ(FactsOf(info.failure).at("ranks"), "1");
}

TEST_F(CoordinatorTest, NobodyIsWaitedForWhereTheSourceCannotBeRead) {
  const TempFolder folder;
  LoadRequest rules = Rules();
  LoadRequest statement = Statement(1);
  rules.source = statement.source = folder.Write("weights.bin", "PK");
  EXPECT_THAT(coordinator_->Propose(1, statement),
              FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
  group_.Drop(1);
  EXPECT_THAT(coordinator_->Propose(0, rules),
              FailsWith(absl::StatusCode::kDataLoss, reason::kSourceInvalid));
}

TEST_F(CoordinatorTest, AMemberIsToldWhichDaemonALoadByRuleWaitsFor) {
  GroupInProcess three{3};
  Coordinator coordinator({three.rank(0).catalog, three.membership(), three.peers(),
                           load_worker_, lookups_, stalls_, {.threads = 1}, ReaderPolicy::kRank0});
  three.Drop(1);
  ASSERT_OK(coordinator.Propose(2, RuleRequest("fsdp:3", source_.path())));
  HeartbeatCall call;
  call.rank = 2;
  call.incarnation = three.Identity(2).incarnation;
  ASSERT_OK_AND_ASSIGN(const HeartbeatReply reply, coordinator.Heartbeat(call));
  ASSERT_EQ(reply.loads.size(), 1u);
  EXPECT_THAT(reply.loads[0].second.waiting_ranks, ::testing::ElementsAre(1));
}

TEST_F(CoordinatorTest, ALoadWaitsForTheLastDaemonToJoin) {
  group_.Drop(1);
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  ASSERT_OK(coordinator_->Join(group_.Identity(1), {}));
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
}

TEST_F(CoordinatorTest, WhatALeaderLearnsFromJoiningRanksIsReused) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Statement(0)));
  ASSERT_OK(coordinator_->Propose(1, Statement(1)));
  ASSERT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  coordinator_.reset();  // waits until rank 1 has its shard, too
  group_.Drop(1);
  ASSERT_OK(group_.rank(0).catalog.Unload(name, false));
  coordinator_ = Start();
  ASSERT_OK(coordinator_->Join(group_.Identity(1), group_.rank(1).catalog.Residents()));
  EXPECT_EQ(coordinator_->Propose(0, Statement(0)).value(), name);
  EXPECT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  EXPECT_EQ(group_.rank(1).link->prepared(), 1);
}

TEST_F(CoordinatorTest, AChangedSourceIsLoadedAnew) {
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  ASSERT_EQ(EndOf(0, name).state, CheckpointState::kActive);
  // The load itself ends a moment after its checkpoint is ACTIVE.
  load_worker_.Submit([] {}).wait();
  source_.Write(1);
  EXPECT_NE(coordinator_->Propose(0, Rules()).value(), name);
}

TEST_F(CoordinatorTest, DestructionAbortsAndWaitsForTheLoadThatRuns) {
  std::promise<void> entered;
  std::promise<void> release;
  group_.rank(1).link->on_prepare = [&] {
    entered.set_value();
    release.get_future().wait();
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const std::string name, coordinator_->Propose(0, Rules()));
  entered.get_future().wait();
  auto gone = std::async(std::launch::async, [&] { coordinator_.reset(); });
  EXPECT_EQ(gone.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  release.set_value();
  gone.get();
  EXPECT_THAT(group_.rank(0).catalog.Get(name).value().failure,
              FailsWith(absl::StatusCode::kUnavailable, reason::kDraining));
}

TEST_F(CoordinatorTest, RefusesAProposalOfARankThatIsNotInTheGroup) {
  EXPECT_THAT(coordinator_->ProposeForMember(7, Rules()),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kWrongRank));
}

}  // namespace
}  // namespace ckptd
