#include "server/collective/straggler_detector.h"

#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

class ExchangeWatchTest : public ::testing::Test {
 protected:
  absl::Status Named() { return watch_.NameStragglers(late_, {0, 1, 2, 3}); }
  std::string RankOf(const absl::Status& status) {
    const Facts facts = FactsOf(status);
    return facts.count("rank") > 0 ? facts.at("rank") : "none";
  }

  const absl::Status late_ =
      MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline, "exchanging bytes");
  StragglerDetector watch_;
};

TEST_F(ExchangeWatchTest, NamesTheRankThatHasDoneFewerExchangesThanOthers) {
  for (const uint32_t rank : {0u, 1u, 3u}) watch_.Note(rank, 9, false);
  watch_.Note(2, 4, false);
  EXPECT_THAT(Named(), Says("rank 2: behind at 4 exchanges, others have done 9: exchanging bytes"));
  EXPECT_EQ(RankOf(Named()), "2");
  EXPECT_EQ(ReasonOf(Named()), reason::kDeadline);
}

TEST_F(ExchangeWatchTest, OfSeveralThatAreBehindNoneIsBlamedAlone) {
  watch_.Note(3, 9, false);
  EXPECT_THAT(Named(), Says("ranks 1, 2: behind at 0 exchanges, others have done 9"));
  EXPECT_EQ(RankOf(Named()), "none");
}

TEST_F(ExchangeWatchTest, JoiningIsLateWhenNobodyHasBeenBusyForTooLong) {
  EXPECT_THAT(watch_.CheckJoinTimeout({}), FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kRankMissing));
  const auto before = Clock::now();
  watch_.Note(2, 0, /*busy=*/true);
  EXPECT_OK(watch_.CheckJoinTimeout(std::chrono::hours(1)));
  EXPECT_GE(watch_.moved(), before) << "it opens its files until now";
  watch_.Note(2, 0, /*busy=*/false);
  EXPECT_FALSE(watch_.CheckJoinTimeout({}).ok());
}

TEST_F(ExchangeWatchTest, WhoHasEndedWithFewerIsNotBehind) {
  watch_.Note(1, 2, false);
  watch_.Ended(1);
  watch_.Note(2, 9, false);
  watch_.Note(3, 5, false);
  EXPECT_THAT(Named(), Says("rank 3: behind at 5 exchanges, others have done 9"));
}

TEST_F(ExchangeWatchTest, TheLastOneIsBehindThoseThatHaveEnded) {
  watch_.Note(3, 5, false);
  for (const uint32_t rank : {1u, 2u}) watch_.Ended(rank);
  EXPECT_THAT(Named(), Says("rank 3: behind at 5 exchanges, others have ended"));
  EXPECT_EQ(RankOf(Named()), "3");
}

TEST_F(ExchangeWatchTest, WhereAllAreAlikeNobodyIsNamed) {
  EXPECT_EQ(Named(), late_);
  for (const uint32_t rank : {1u, 2u, 3u}) watch_.Ended(rank);
  EXPECT_EQ(Named(), late_);
}

TEST_F(ExchangeWatchTest, HasMovedWhenARankWentOnOrIsBusy) {
  EXPECT_TRUE(watch_.Nothing());
  const Clock::time_point begun = watch_.moved();
  watch_.Note(1, 0, false);
  EXPECT_EQ(watch_.moved(), begun);
  watch_.Note(1, 0, true);
  EXPECT_TRUE(watch_.Nothing());
  const Clock::time_point busy = watch_.moved();
  EXPECT_GT(busy, begun);
  watch_.Note(2, 1, false);
  EXPECT_FALSE(watch_.Nothing());
  EXPECT_GT(watch_.moved(), busy);
}

}  // namespace
}  // namespace ckptd
