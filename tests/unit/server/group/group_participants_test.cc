#include "server/group/group_participants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

// Three ranks. Each test says which call each rank is in, and what each is notified of.
class GroupParticipantsTest : public ::testing::Test {
 protected:
  static Participant In(const std::string& id, const std::string& source = "/m") {
    Participant participant;
    participant.id = id;
    participant.source = source;
    participant.real_source = "/real" + source;
    participant.pid = 7;
    participant.process_age = seconds(100);
    return participant;
  }
  static Participant Waiting(Participant participant) {
    participant.barrier = true;
    return Placed(participant);
  }
  static Participant Placed(Participant participant) {
    participant.state = Participant::State::kPlaced;
    return participant;
  }
  static Participant Failed(Participant participant, const std::string& why = "a mistake") {
    participant.state = Participant::State::kFailed;
    participant.failure = MakeError(absl::StatusCode::kNotFound, reason::kTensorNotFound, why);
    return participant;
  }
  static Participant Of(const std::string& job, Participant participant) {
    participant.job = job;
    return participant;
  }
  // As its daemon reports it later: how long ago it joined and ended.
  static Participant Aged(Participant participant, seconds joined, seconds ended = seconds(0)) {
    participant.age = joined;
    participant.ended_age = ended;
    return participant;
  }
  // The message with which this call of the rank has ended: "in it" if it has not, "" if OK.
  std::string Hears(uint32_t rank, const Participant& participant) {
    for (const Verdict& verdict : group_.Update(rank, {participant}, now_)) {
      if (verdict.id == participant.id) return MessageOf(verdict.status);
    }
    return "in it";
  }
  void FailAtRank1() {
    group_.Update(1, {In("b")}, now_);
    group_.Update(1, {Failed(In("b"))}, now_);
    group_.Update(1, {}, now_);
  }

  GroupParticipants group_{3};
  Clock::time_point now_ = Clock::now();
};

TEST_F(GroupParticipantsTest, FailuresOfAGuestAreNoOtherUsersAffair) {
  const auto of_guest = [](Participant participant) {
    participant.guest = 1001;
    return participant;
  };
  group_.Update(0, {In("a")}, now_);
  group_.Update(2, {of_guest(In("c"))}, now_);
  group_.Update(1, {of_guest(In("b"))}, now_);
  group_.Update(1, {of_guest(Failed(In("b")))}, now_);
  EXPECT_EQ(Hears(0, In("a")), "in it");
  EXPECT_EQ(Hears(2, of_guest(In("c"))), "rank 1: a mistake");
  const auto ended = group_.TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].guest, std::optional<uid_t>(1001)) << "not the loads of others";
  EXPECT_THAT(ended[0].sources, ::testing::ElementsAre("/m"));
  EXPECT_THAT(group_.JobsOf(0, "/m", 1001), ::testing::ElementsAre(""));
}

TEST_F(GroupParticipantsTest, EveryOtherRankInTheLoadHearsOfAFailureWithItsFactsAndOnce) {
  group_.Update(0, {In("a")}, now_);
  group_.Update(2, {In("c")}, now_);
  FailAtRank1();
  const auto verdicts = group_.Update(0, {In("a")}, now_);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(MessageOf(verdicts[0].status), "rank 1: a mistake");
  EXPECT_EQ(ReasonOf(verdicts[0].status), reason::kTensorNotFound);
  EXPECT_EQ(FactsOf(verdicts[0].status).at("rank"), "1");
  EXPECT_EQ(Hears(2, In("c")), "rank 1: a mistake");
  now_ += seconds(3);
  EXPECT_EQ(Hears(0, In("a2")), "in it") << "its next call";
  now_ += seconds(3);
  EXPECT_EQ(Hears(0, In("a2")), "in it");
}

TEST_F(GroupParticipantsTest, OneThatEndedBeforeItHeardHearsInItsNextCall) {
  group_.Update(0, {In("a")}, now_);
  FailAtRank1();
  const auto next = [this] { return group_.Update(0, {Placed(In("a")), In("a2")}, now_); };
  next();
  now_ += timing::kRejoinGrace;
  const auto verdicts = next();
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[1].id, "a2");
  EXPECT_EQ(MessageOf(verdicts[1].status), "rank 1: a mistake");
}

TEST_F(GroupParticipantsTest, LoadsThatWaitForTheRankEndUnderAllTheirNamesAndOnce) {
  Participant by_a_link = In("a", "/link");
  by_a_link.real_source = "/real/m";
  group_.Update(0, {by_a_link}, now_);
  group_.Update(2, {In("c", "/another")}, now_);
  FailAtRank1();
  const auto ended = group_.TakeEnded();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(ended[0].sources, ::testing::ElementsAre("/link", "/m"));
  EXPECT_EQ(MessageOf(ended[0].why), "rank 1: a mistake");
  EXPECT_TRUE(group_.TakeEnded().empty());
}

TEST_F(GroupParticipantsTest, RanksThatFailBecauseAnotherOneDidTellNobody) {
  group_.Update(0, {In("a")}, now_);
  FailAtRank1();
  group_.Update(0, {Failed(In("a"), "a consequence")}, now_);
  group_.Update(0, {}, now_);
  group_.Update(1, {In("b2")}, now_);
  now_ += seconds(3);
  EXPECT_EQ(Hears(1, In("b2")), "in it");
}

TEST_F(GroupParticipantsTest, ALoadIsTheSameWhereOneOfItsTwoNamesIs) {
  Participant other_name = In("a", "/link"), other_host = In("c");
  other_name.real_source = "/real/m";
  other_host.real_source = "/elsewhere";
  Participant another = In("d", "/n");
  group_.Update(0, {other_name, another}, now_);
  group_.Update(2, {other_host}, now_);
  FailAtRank1();
  EXPECT_EQ(Hears(2, other_host), "rank 1: a mistake");
  const auto verdicts = group_.Update(0, {other_name, another}, now_);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "a");
}

TEST_F(GroupParticipantsTest, ARankThatComesLaterHearsItUnlessTheOtherOneComesAgain) {
  for (const bool comes_again : {false, true}) {
    FailAtRank1();
    now_ += seconds(11);
    const std::string id = comes_again ? "again" : "a";
    EXPECT_EQ(Hears(0, In(id)), "in it") << "for a moment";
    if (comes_again) group_.Update(1, {In("b2", "/whatever it is")}, now_);
    now_ += timing::kRejoinGrace;
    EXPECT_EQ(Hears(0, In(id)), comes_again ? "in it" : "rank 1: a mistake");
    group_.Update(0, {}, now_);
  }
}

TEST_F(GroupParticipantsTest, AFailureIsHeardOfForSecondsAndByNoProcessThatBeganAfterIt) {
  FailAtRank1();
  Participant young = In("c");
  now_ += seconds(4);
  young.process_age = seconds(3);
  EXPECT_EQ(Hears(2, young), "in it");
  now_ += timing::kFailureVisibleFor - seconds(4) + milliseconds(1);
  EXPECT_EQ(Hears(0, In("a")), "in it");
  now_ += seconds(10);
  EXPECT_EQ(Hears(0, In("a")), "in it");
  young.process_age += seconds(20);
  EXPECT_EQ(Hears(2, young), "in it");
}

TEST_F(GroupParticipantsTest, AFailureThatIsToldLateEndsNothingWhereItsRankHasComeAgain) {
  group_.Update(2, {Aged(In("c2"), seconds(3))}, now_);
  const Participant old = Aged(Failed(In("b")), seconds(90), seconds(8));
  group_.Update(1, {old, Aged(In("b2"), seconds(3))}, now_);
  EXPECT_EQ(Hears(2, In("c2")), "in it");
  EXPECT_TRUE(group_.TakeEnded().empty());
  now_ += seconds(4);
  EXPECT_EQ(Hears(2, In("c2")), "in it");
}

TEST_F(GroupParticipantsTest, AFailureThatIsToldLateLeavesItsRankTheTimeToComeAgain) {
  group_.Update(2, {Aged(In("c2"), seconds(3))}, now_);
  now_ += seconds(3);
  group_.Update(1, {Aged(Failed(In("b")), seconds(90), seconds(8))}, now_);
  EXPECT_EQ(Hears(2, In("c2")), "in it");
  EXPECT_TRUE(group_.TakeEnded().empty()) << "rank 2 waits in it";
  now_ += timing::kRejoinGrace;
  EXPECT_EQ(Hears(2, In("c2")), "rank 1: a mistake");
}

TEST_F(GroupParticipantsTest, JobsThatUseTheSameDaemonsHearNothingOfEachOther) {
  group_.Update(0, {Of("E", In("e0")), Of("T", In("t0"))}, now_);
  group_.Update(2, {In("unknown", "/link")}, now_);
  group_.Update(1, {Of("E", In("e1"))}, now_);
  group_.Update(1, {Of("E", Failed(In("e1")))}, now_);
  const auto verdicts = group_.Update(0, {Of("E", In("e0")), Of("T", In("t0"))}, now_);
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].id, "e0");
  EXPECT_TRUE(group_.TakeEnded().empty()) << "T waits in a load of the same files";
  now_ += timing::kAbsentAfter;
  EXPECT_EQ(Hears(0, Of("T", In("t0"))), "in it");
  group_.Update(1, {Of("T", In("t1"))}, now_);
  EXPECT_EQ(Hears(0, Of("E", In("e2", "/next"))), "in it");
  now_ += timing::kAbsentAfter;
  EXPECT_EQ(Hears(2, Of("E", In("later", "/next"))), "in it");
  now_ += timing::kAbsentAfter;
  EXPECT_EQ(Hears(2, Of("E", In("later", "/next"))), "rank 1: a mistake") << "T's call is none of E";
}

TEST_F(GroupParticipantsTest, TheJobsThatWaitForALoadAtARankAreKnown) {
  group_.Update(0, {Of("E", In("e0")), Of("T", In("t0", "/n"))}, now_);
  EXPECT_THAT(group_.JobsOf(0, "/m"), ::testing::ElementsAre("E"));
  EXPECT_THAT(group_.JobsOf(1, "/m"), ::testing::ElementsAre(""));
}

TEST_F(GroupParticipantsTest, ARankThatFailedElsewhereAndStaysAwayIsHeardOfByThoseWhoWait) {
  Participant other = In("b", "/other");
  group_.Update(0, {In("a")}, now_);
  group_.Update(1, {other}, now_);
  group_.Update(1, {Failed(other)}, now_);
  group_.Update(1, {}, now_);
  now_ += timing::kAbsentAfter - milliseconds(1);
  EXPECT_EQ(Hears(0, In("a")), "in it");
  now_ += milliseconds(1);
  EXPECT_EQ(Hears(0, In("a")), "rank 1: a mistake");
}

TEST_F(GroupParticipantsTest, ARankThatFailedElsewhereAndIsInACallIsWaitedFor) {
  Participant other = In("b", "/other");
  group_.Update(0, {In("a")}, now_);
  group_.Update(1, {In("here"), other}, now_);
  group_.Update(1, {In("here"), Failed(other)}, now_);
  now_ += seconds(10);
  EXPECT_EQ(Hears(0, In("a")), "in it");
}

TEST_F(GroupParticipantsTest, OfADaemonThatLeftTheGroupItsClientsHaveFailedButForThoseThatWereDone) {
  group_.Update(0, {In("a")}, now_);
  group_.Update(1, {Placed(In("b"))}, now_);
  group_.Forget(1, now_);
  EXPECT_EQ(Hears(0, In("a")), "in it");
  group_.Update(1, {In("b2")}, now_);
  group_.Forget(1, now_);
  EXPECT_THAT(Hears(0, In("a")), HasSubstr("rank 1: loading /m: its daemon left the group"));
}

TEST_F(GroupParticipantsTest, ABarrierEndsWhenEveryRankHasPlaced) {
  const Participant a = Waiting(In("a")), b = Placed(In("b")), c = Waiting(In("c"));
  EXPECT_EQ(Hears(0, a), "in it");
  Participant on_its_way = c;
  on_its_way.state = Participant::State::kLoading;
  EXPECT_EQ(Hears(2, on_its_way), "in it");
  EXPECT_EQ(Hears(1, b), "in it") << "nobody waits for its answer";
  group_.Update(1, {}, now_);
  EXPECT_EQ(Hears(0, a), "in it");
  EXPECT_EQ(Hears(2, c), "") << "rank 1 has placed, and gone";
  EXPECT_EQ(Hears(0, a), "");
}

TEST_F(GroupParticipantsTest, ABarrierTakesNobodysPlaceOfTheOneBefore) {
  for (const std::string call : {"1", "2"}) {
    const Participant a = Waiting(In("a" + call)), b = Waiting(In("b" + call)),
                      c = Waiting(In("c" + call));
    EXPECT_EQ(Hears(0, a), "in it");
    EXPECT_EQ(Hears(2, c), "in it");
    EXPECT_EQ(Hears(1, b), "");
    // Rank 1 is released, and makes its next call before the others have reported.
    EXPECT_EQ(Hears(1, Waiting(In("next of b" + call))), "in it");
    EXPECT_EQ(Hears(0, a), "");
    EXPECT_EQ(Hears(2, c), "");
    for (uint32_t rank = 0; rank < 3; ++rank) group_.Update(rank, {}, now_);
  }
}

TEST_F(GroupParticipantsTest, ABarrierThatIsNotReachedInTimeSaysWhoIsMissingToAllInIt) {
  Participant a = In("a");
  a.time_left = seconds(30);
  EXPECT_EQ(Hears(0, Waiting(a)), "in it");
  EXPECT_EQ(Hears(2, Waiting(In("c"))), "in it");
  now_ += seconds(30);
  EXPECT_THAT(Hears(0, Waiting(a)), HasSubstr("before rank 1 had placed"));
  EXPECT_THAT(Hears(2, Waiting(In("c"))), HasSubstr("rank 0: loading /m with a barrier"));
}

TEST_F(GroupParticipantsTest, WhoWaitsAtABarrierHearsOfAFailure) {
  EXPECT_EQ(Hears(0, Waiting(In("a"))), "in it");
  FailAtRank1();
  EXPECT_EQ(Hears(0, Waiting(In("a"))), "rank 1: a mistake");
}

TEST_F(GroupParticipantsTest, MoreThanARankMayHaveAreLeftOut) {
  std::vector<Participant> many;
  for (size_t i = 0; i < 2 * kMostParticipants; ++i) many.push_back(In("a" + std::to_string(i)));
  group_.Update(0, many, now_);
  FailAtRank1();
  EXPECT_EQ(group_.Update(0, many, now_).size(), kMostParticipants);
  EXPECT_TRUE(group_.Update(3, many, now_).empty()) << "there is no such rank";
}

}  // namespace
}  // namespace ckptd
