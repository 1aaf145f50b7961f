#include "server/load/error_attribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

absl::Status Lost(Facts facts = {}) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost, "it is gone", facts);
}

TEST(Attribute, AnErrorThatNamesNoRankGetsThatOfItsOrigin) {
  const Attribution found =
      Attribute(3, MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "too little"));
  EXPECT_EQ(MessageOf(found.status), "rank 3: too little");
  EXPECT_EQ(FactsOf(found.status).at("rank"), "3");
  EXPECT_FALSE(found.rank_is_lost || found.may_be_deadline || found.may_be_epoch);
}

TEST(Attribute, AnErrorThatNamesARankStaysAsItIs) {
  const absl::Status told = Lost({{"rank", "5"}});
  EXPECT_EQ(Attribute(3, told).status, told);
}

TEST(Attribute, ARankThatDoesNotAnswerIsLostAndOneThatLostAnotherIsNot) {
  EXPECT_TRUE(Attribute(3, Lost()).rank_is_lost);
  EXPECT_TRUE(Attribute(3, Lost({{"rank", "3"}})).rank_is_lost);
  EXPECT_FALSE(Attribute(3, Lost({{"rank", "5"}})).rank_is_lost);
}

TEST(Attribute, SilenceMayBeTheDeadlineOfTheLoadAndADeadlineThatNamesARankIsNot) {
  const auto late = [](const Facts& facts) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline, "late", facts);
  };
  EXPECT_TRUE(Attribute(3, Lost()).may_be_deadline);
  EXPECT_TRUE(Attribute(3, late({})).may_be_deadline);
  EXPECT_FALSE(Attribute(3, late({{"rank", "5"}})).may_be_deadline);
}

TEST(Attribute, ARankThatKnowsAnotherEpochMayKnowTheReason) {
  EXPECT_TRUE(Attribute(3, MakeError(absl::StatusCode::kAborted, reason::kEpochChanged, "it changed"))
                  .may_be_epoch);
}

TEST(RankNamedBy, IsTheRankOfTheFactsWhereThereIsSuchARank) {
  EXPECT_EQ(RankNamedBy(Lost({{"rank", "5"}}), 6), 5u);
  EXPECT_EQ(RankNamedBy(Lost({{"rank", "6"}}), 6), std::nullopt);
  EXPECT_EQ(RankNamedBy(Lost({{"rank", "five"}}), 6), std::nullopt);
  EXPECT_EQ(RankNamedBy(Lost(), 6), std::nullopt);
}

}  // namespace
}  // namespace ckptd
