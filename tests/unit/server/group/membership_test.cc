#include "server/group/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kRefused = absl::StatusCode::kFailedPrecondition;

// A member that answers probes, or does not.
class ProbedLink final : public MemberLink {
 public:
  explicit ProbedLink(absl::Status answer) : answer_(std::move(answer)) {}
  absl::StatusOr<PrepareReply> Prepare(const PrepareCall&, Deadline) override { return answer_; }
  absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall&) override {
    return answer_;
  }
  std::unique_ptr<TransferSink> OpenSink(const SinkCall&) override { return nullptr; }
  absl::Status Commit(const CommitCall&, Deadline) override { return answer_; }
  absl::Status Abort(const std::string&, const absl::Status&, Deadline) override {
    return answer_;
  }
  absl::Status GiveBack(const std::string&, Deadline) override { return absl::OkStatus(); }
  absl::StatusOr<bool> Holds(const std::string&, Deadline) override { return answer_; }
  absl::Status Probe(Deadline) override { return answer_; }
  void Close(const std::string& why) override { closed = why; }

  std::string closed;

 private:
  const absl::Status answer_;
};

MemberIdentity Who(uint32_t rank, const std::string& incarnation = "one") {
  MemberIdentity who;
  who.job = "job";
  who.version = "1.0";
  who.rank = rank;
  who.world_size = 3;
  who.incarnation = incarnation;
  who.address = "10.0.0.1:1234";
  who.pid = 77;
  return who;
}

class MembershipTest : public ::testing::Test {
 protected:
  Membership::Options Options() {
    Membership::Options options;
    options.self = Who(0, "leader");
    options.self_link = std::make_shared<ProbedLink>(absl::OkStatus());
    options.connect = [this](const MemberIdentity&) {
      return std::make_shared<ProbedLink>(probe_answer_);
    };
    return options;
  }

  absl::Status probe_answer_;  // of links made from now on
  Membership members_{Options()};
};

TEST_F(MembershipTest, AdmitsAMemberWithTheEpochAndTheSecret) {
  ASSERT_OK_AND_ASSIGN(const JoinReply reply, members_.Join(Who(1)));
  EXPECT_EQ(reply.epoch, members_.epoch());
  EXPECT_EQ(reply.secret, members_.secret());
  EXPECT_EQ(reply.incarnation, "leader");
}

TEST_F(MembershipTest, TellsWhoKnowsNobodyOfAllOnceTheyAreAll) {
  ASSERT_OK(members_.Join(Who(1)));
  EXPECT_THAT(members_.ChangedSince(0), testing::IsEmpty());
  ASSERT_OK(members_.Join(Who(2)));
  EXPECT_THAT(members_.ChangedSince(0),
              testing::ElementsAre(testing::Pair(0, "leader"), testing::Pair(1, "one"),
                                   testing::Pair(2, "one")));
}

TEST_F(MembershipTest, TellsOthersWhatHasChanged) {
  ASSERT_OK(members_.Join(Who(1)));
  ASSERT_OK(members_.Join(Who(2)));
  const uint64_t complete = members_.epoch();
  EXPECT_THAT(members_.ChangedSince(complete), testing::IsEmpty());
  members_.Drop(1, complete, "its cable was cut");
  EXPECT_THAT(members_.ChangedSince(complete), testing::ElementsAre(testing::Pair(1, "")));
  ASSERT_OK(members_.Join(Who(1, "two")));
  EXPECT_THAT(members_.ChangedSince(complete), testing::ElementsAre(testing::Pair(1, "two")));
  EXPECT_THAT(members_.ChangedSince(members_.epoch()), testing::IsEmpty());
}

TEST_F(MembershipTest, RefusesAnotherJobByName) {
  MemberIdentity who = Who(1);
  who.job = "other";
  const auto refused = members_.Join(who);
  EXPECT_THAT(refused, FailsWith(kRefused, reason::kJoinRefused));
  EXPECT_THAT(refused, Says("its job is \"other\", this group's is \"job\""));
}

TEST_F(MembershipTest, RefusesAnotherVersion) {
  MemberIdentity who = Who(1);
  who.version = "2.0";
  EXPECT_THAT(members_.Join(who), Says("it runs ckptd 2.0, the leader 1.0"));
}

TEST_F(MembershipTest, RefusesAnotherWorldSize) {
  MemberIdentity who = Who(1);
  who.world_size = 4;
  EXPECT_THAT(members_.Join(who), Says("world size of 4, the leader for 3"));
}

TEST_F(MembershipTest, RefusesRanksThatAreNotMembers) {
  EXPECT_THAT(members_.Join(Who(0)), FailsWith(kRefused, reason::kJoinRefused));
  EXPECT_THAT(members_.Join(Who(3)), FailsWith(kRefused, reason::kJoinRefused));
}

TEST_F(MembershipTest, RefusesASecondDaemonOfALiveRankAndNamesTheHolder) {
  ASSERT_OK(members_.Join(Who(1, "first")));
  const auto refused = members_.Join(Who(1, "second"));
  EXPECT_THAT(refused, FailsWith(kRefused, reason::kJoinRefused));
  EXPECT_THAT(refused, Says("process 77 on 10.0.0.1:1234 holds that rank"));
}

TEST_F(MembershipTest, ReplacesAHolderThatNoLongerAnswers) {
  probe_answer_ = absl::UnavailableError("gone");
  ASSERT_OK(members_.Join(Who(1, "first")));
  ASSERT_OK(members_.Join(Who(1, "second")));
  EXPECT_OK(members_.Heartbeat(1, "second"));
  EXPECT_THAT(members_.Heartbeat(1, "first"),
              FailsWith(absl::StatusCode::kNotFound, reason::kRankMissing));
}

TEST_F(MembershipTest, JoiningStartsANewEpoch) {
  const uint64_t before = members_.epoch();
  ASSERT_OK(members_.Join(Who(1)));
  EXPECT_GT(members_.epoch(), before);
}

TEST_F(MembershipTest, JoiningAgainAsTheSameProcessKeepsTheEpoch) {
  ASSERT_OK(members_.Join(Who(1)));
  const uint64_t before = members_.epoch();
  ASSERT_OK(members_.Join(Who(1)));
  EXPECT_EQ(members_.epoch(), before);
}

TEST_F(MembershipTest, AnEpochThatAJoinEndedNamesTheRank) {
  const uint64_t before = members_.epoch();
  ASSERT_OK(members_.Join(Who(2)));
  const absl::Status ended = members_.CheckEpoch(before);
  EXPECT_THAT(ended, FailsWith(absl::StatusCode::kAborted, reason::kEpochChanged));
  EXPECT_EQ(FactsOf(ended).at("rank"), "2");
}

TEST_F(MembershipTest, AnEpochThatALossEndedNamesTheRankAndWhy) {
  ASSERT_OK(members_.Join(Who(2)));
  const uint64_t before = members_.epoch();
  members_.Drop(2, before, "its cable was cut");
  const absl::Status ended = members_.CheckEpoch(before);
  EXPECT_THAT(ended, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_THAT(ended, Says("its cable was cut"));
  EXPECT_EQ(FactsOf(ended).at("rank"), "2");
}

TEST_F(MembershipTest, TheCurrentEpochIsFine) {
  EXPECT_OK(members_.CheckEpoch(members_.epoch()));
}

TEST_F(MembershipTest, DroppingAnEarlierProcessLeavesItsSuccessorIn) {
  probe_answer_ = absl::UnavailableError("gone");
  ASSERT_OK(members_.Join(Who(1, "first")));
  const uint64_t before = members_.epoch();
  ASSERT_OK(members_.Join(Who(1, "second")));
  members_.Drop(1, before, "late news");
  EXPECT_OK(members_.Heartbeat(1, "second"));
}

TEST_F(MembershipTest, AProcessThatHasJoinedAnewIsNotDroppedForItsSilenceBefore) {
  ASSERT_OK(members_.Join(Who(1)));
  const uint64_t before = members_.epoch();
  members_.Drop(1, before, "it stands still");
  ASSERT_OK(members_.Join(Who(1)));
  members_.Drop(1, before, "late news");
  EXPECT_OK(members_.Heartbeat(1, "one"));
}

TEST_F(MembershipTest, TheCallsToADroppedMemberEndWithTheReason) {
  ASSERT_OK(members_.Join(Who(1)));
  const auto link = std::static_pointer_cast<ProbedLink>(members_.Links().back());
  members_.Drop(1, members_.epoch(), "it stands still");
  EXPECT_EQ(link->closed, "it stands still");
}

TEST_F(MembershipTest, TheLeaderIsNeverDropped) {
  members_.Drop(0, members_.epoch(), "nonsense");
  EXPECT_THAT(members_.MissingRanks(), ::testing::ElementsAre(1, 2));
}

TEST_F(MembershipTest, TellsWhoIsMissing) {
  ASSERT_OK(members_.Join(Who(2)));
  EXPECT_THAT(members_.MissingRanks(), ::testing::ElementsAre(1));
  EXPECT_THAT(members_.Heartbeat(2, "one").value().missing_ranks, ::testing::ElementsAre(1));
}

TEST_F(MembershipTest, AHeartbeatOfAStrangerAsksItToJoin) {
  EXPECT_THAT(members_.Heartbeat(1, "one"),
              FailsWith(absl::StatusCode::kNotFound, reason::kRankMissing));
}

TEST_F(MembershipTest, AHeartbeatOfARankPastTheGroupIsRefused) {
  EXPECT_THAT(members_.Heartbeat(3000, "one"),
              FailsWith(absl::StatusCode::kNotFound, reason::kRankMissing));
}

TEST_F(MembershipTest, ThereIsNoSessionWhileARankIsMissing) {
  ASSERT_OK(members_.Join(Who(1)));
  EXPECT_FALSE(members_.CurrentSession().has_value());
}

TEST_F(MembershipTest, ASessionHasTheLinksOfAllRanks) {
  ASSERT_OK(members_.Join(Who(1)));
  ASSERT_OK(members_.Join(Who(2)));
  const auto session = members_.CurrentSession();
  ASSERT_TRUE(session.has_value());
  EXPECT_EQ(session->links.size(), 3u);
  EXPECT_EQ(session->epoch, members_.epoch());
}

TEST_F(MembershipTest, WaitsUntilTheLastRankHasJoined) {
  ASSERT_OK(members_.Join(Who(1)));
  auto complete = std::async(std::launch::async, [&] { return members_.WaitComplete(Soon()); });
  ASSERT_OK(members_.Join(Who(2)));
  EXPECT_TRUE(complete.get());
}

TEST_F(MembershipTest, WaitingForRanksEndsAtTheDeadline) {
  EXPECT_FALSE(members_.WaitComplete(Clock::now()));
}

TEST_F(MembershipTest, MembersThatBeatAreNotSilent) {
  ASSERT_OK(members_.Join(Who(1)));
  EXPECT_THAT(members_.DropSilent(), ::testing::IsEmpty());
}

TEST_F(MembershipTest, DropsMembersThatWereSilentForTooLong) {
  Membership::Options options = Options();
  options.heartbeat_timeout = std::chrono::nanoseconds(-1);  // any silence is too long
  Membership members(options);
  ASSERT_OK(members.Join(Who(1)));
  EXPECT_THAT(members.DropSilent(), ::testing::ElementsAre(1));
  EXPECT_THAT(members.MissingRanks(), ::testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace ckptd
