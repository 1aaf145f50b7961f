#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"
#include "tests/testing/pending_loads_fixture.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PendingLoadsConflictTest : public PendingLoadsTest {
 protected:
  std::string StateOf(uint32_t rank, const std::string& source) {
    LoadRequest request = RankRequest(rank, 3);
    request.source = source;
    return Propose(rank, request);
  }
  // What is given up at that time, by the sentence that it is given up with.
  std::vector<std::string> GivenUp(Clock::duration after) {
    pending_.EndConflicts(now_ + after, jobs_);
    std::vector<std::string> sentences;
    for (const auto& one : pending_.TakeExpired(now_ + after)) {
      EXPECT_EQ(ReasonOf(one.cancelled), reason::kLoadConflict);
      sentences.push_back(MessageOf(one.cancelled));
    }
    return sentences;
  }

  PendingLoads::JobsOf jobs_ = [](uint32_t, const LoadRequest&) { return std::set<std::string>{""}; };
};

TEST_F(PendingLoadsConflictTest, LoadsOfTwoJobsThatUseTheSameDaemonsDoNotWaitForEachOther) {
  StateOf(0, "/a");
  StateOf(1, "/b");
  bool known = true;
  jobs_ = [&known](uint32_t, const LoadRequest& request) {
    return std::set<std::string>{known ? "job of " + request.source : ""};
  };
  GivenUp({});
  EXPECT_THAT(GivenUp(timing::kConflictPatience), IsEmpty());
  known = false;
  GivenUp({});
  EXPECT_EQ(GivenUp(timing::kConflictPatience).size(), 2u);
}

TEST_F(PendingLoadsConflictTest, LoadsOfTwoUsersNeitherEndNorDescribeEachOther) {
  StateOf(0, "/a");
  LoadRequest request = RankRequest(1, 3);
  request.source = "/secret";
  request.guest = Caller{1001, 5};
  Propose(1, request);
  GivenUp({});
  EXPECT_THAT(GivenUp(timing::kConflictPatience), IsEmpty());
  for (const auto& waiting : pending_.ListWaiting()) EXPECT_EQ(waiting.conflict, "");
}

TEST_F(PendingLoadsConflictTest, LoadsThatWaitForEachOthersRanksAreGivenUpAfterSeconds) {
  StateOf(0, "/a");
  StateOf(1, "/b");
  StateOf(2, "/a");
  EXPECT_THAT(GivenUp({}), IsEmpty());
  EXPECT_THAT(GivenUp(timing::kConflictPatience - milliseconds(1)), IsEmpty());
  EXPECT_THAT(GivenUp(timing::kConflictPatience),
              ::testing::UnorderedElementsAre(
                  HasSubstr("loading /a: the ranks do not make the same load, rank 1 loads /b"),
                  HasSubstr("loading /b: the ranks do not make the same load, rank 0 loads /a")));
  EXPECT_THAT(pending_.Names(), IsEmpty());
}

TEST_F(PendingLoadsConflictTest, SoAreLoadsOfThreeDifferentFilesAndOfOneFileWithOtherOptions) {
  StateOf(0, "/a");
  StateOf(1, "/b");
  LoadRequest other = RankRequest(2, 3);
  other.source = "/a";
  other.digests = false;
  Propose(2, other);
  GivenUp({});
  const auto sentences = GivenUp(timing::kConflictPatience);
  EXPECT_EQ(sentences.size(), 3u);
  EXPECT_THAT(sentences, ::testing::Contains(HasSubstr("with other options")));
}

TEST_F(PendingLoadsConflictTest, ALoadThatWaitsForRanksIsGivenUpForAllOfThemAndOneThatRunsIsNot) {
  const std::string waits = StateOf(0, "/a");
  const std::string other = StateOf(0, "/b");
  for (uint32_t rank = 0; rank < 3; ++rank) StateOf(rank, "/c");
  const ReadyLoad runs = pending_.TakeReady().at(0);
  const std::string by_rule = Propose(1, RuleRequest("fsdp:3", "/a"));
  for (const char* source : {"/a", "/c"}) pending_.CancelWaiting(source, absl::AbortedError("a mistake"));
  EXPECT_NE(StateOf(1, "/a"), waits) << "nobody joins it";
  const auto taken = pending_.TakeExpired(now_);
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].name, waits);
  EXPECT_EQ(taken[0].cancelled, absl::AbortedError("a mistake"));
  EXPECT_OK(runs.state->cancelled());
  EXPECT_EQ(pending_.TakeReady().at(0).name, by_rule);
}

TEST_F(PendingLoadsConflictTest, RanksThatComeInTheirOwnTimeAreWaitedFor) {
  StateOf(0, "/a");
  StateOf(0, "/b");
  StateOf(1, "/b");
  GivenUp({});
  EXPECT_THAT(GivenUp(std::chrono::seconds(60)), IsEmpty()) << "rank 1 may come to /a after /b";
}

TEST_F(PendingLoadsConflictTest, OneThatIsSolvedInTimeIsForgotten) {
  StateOf(0, "/a");
  StateOf(1, "/b");
  GivenUp({});
  StateOf(0, "/b");
  EXPECT_THAT(GivenUp(timing::kConflictPatience), IsEmpty());
  StateOf(2, "/c");
  EXPECT_THAT(GivenUp(timing::kConflictPatience + milliseconds(1)), IsEmpty()) << "it began just now";
}

}  // namespace
}  // namespace ckptd
