#include "server/protocol/reading.h"

#include <gtest/gtest.h>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(ReaderPolicy, IsNamedAsInTheSettings) {
  EXPECT_EQ(ParseReaderPolicy("rank0").value(), ReaderPolicy::kRank0);
  EXPECT_EQ(ParseReaderPolicy("per_node").value(), ReaderPolicy::kPerNode);
  EXPECT_EQ(ParseReaderPolicy("all").value(), ReaderPolicy::kAll);
  EXPECT_THAT(ParseReaderPolicy("everyone"),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST(ShareReading, Rank0ReadsForAllEvenIfItHasItsOwn) {
  const auto shares = ShareReading(ReaderPolicy::kRank0, {1, 2}, {"b", "b"});
  ASSERT_THAT(shares, SizeIs(1));
  EXPECT_EQ(shares[0].rank, 0u);
  EXPECT_EQ(shares[0].parts, 1u);
  EXPECT_THAT(shares[0].targets, ElementsAre(1, 2));
}

TEST(ShareReading, PerNodeTheLowestRankOfAHostReadsForItsHost) {
  const auto shares = ShareReading(ReaderPolicy::kPerNode, {0, 1, 3, 4}, {"a", "b", "b", "a"});
  ASSERT_THAT(shares, SizeIs(2));
  EXPECT_EQ(shares[0].rank, 0u);
  EXPECT_THAT(shares[0].targets, ElementsAre(0, 4));
  EXPECT_EQ(shares[1].rank, 1u);
  EXPECT_EQ(shares[1].parts, 1u);
  EXPECT_THAT(shares[1].targets, ElementsAre(1, 3));
}

TEST(ShareReading, AllReadEqualPartsForAll) {
  const auto shares = ShareReading(ReaderPolicy::kAll, {0, 2, 3}, {"a", "a", "b"});
  ASSERT_THAT(shares, SizeIs(3));
  for (uint32_t part = 0; part < 3; ++part) {
    EXPECT_EQ(shares[part].part, part);
    EXPECT_EQ(shares[part].parts, 3u);
    EXPECT_THAT(shares[part].targets, ElementsAre(0, 2, 3));
  }
  EXPECT_EQ(shares[1].rank, 2u);
}

TEST(ShareReading, NobodyReadsWhenNobodyLacksAnything) {
  EXPECT_THAT(ShareReading(ReaderPolicy::kRank0, {}, {}), SizeIs(0));
}

}  // namespace
}  // namespace ckptd
