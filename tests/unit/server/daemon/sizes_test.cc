#include "server/daemon/sizes.h"

#include <gtest/gtest.h>

#include <utility>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kInvalidArgument = absl::StatusCode::kInvalidArgument;

class Size : public ::testing::TestWithParam<std::pair<const char*, uint64_t>> {};

TEST_P(Size, IsRead) { EXPECT_EQ(ParseBytes(GetParam().first).value(), GetParam().second); }

INSTANTIATE_TEST_SUITE_P(
    Sizes, Size,
    ::testing::Values(std::pair("0", 0), std::pair("4096", 4096), std::pair("12B", 12),
                      std::pair("800M", 800'000'000), std::pair("2.5 GB", 2'500'000'000),
                      std::pair("256MiB", 268'435'456), std::pair("16gib", 17'179'869'184),
                      std::pair("1KiB", 1024), std::pair("1k", 1000),
                      std::pair("2TiB", 2'199'023'255'552), std::pair("1tb", 1'000'000'000'000)));

class NoSize : public ::testing::TestWithParam<const char*> {};

TEST_P(NoSize, IsRefused) {
  EXPECT_THAT(ParseBytes(GetParam()), FailsWith(kInvalidArgument, reason::kConfigInvalid));
}

INSTANTIATE_TEST_SUITE_P(Sizes, NoSize,
                         ::testing::Values("", "GiB", "-1", "1XB", "nan", "inf", "1e30",
                                           "10000000TB", "0x10", "12 monkeys", "1..5", "80%"));

class Share : public ::testing::TestWithParam<std::pair<const char*, uint64_t>> {};

TEST_P(Share, IsReadAsPartOfAThousand) {
  EXPECT_EQ(ParseShare(GetParam().first, 1000).value(), GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(Shares, Share,
                         ::testing::Values(std::pair("80%", 800), std::pair("100%", 1000),
                                           std::pair("12.5%", 125), std::pair("0", 0),
                                           std::pair("2KiB", 2048)));

class NoShare : public ::testing::TestWithParam<const char*> {};

TEST_P(NoShare, IsRefused) {
  EXPECT_THAT(ParseShare(GetParam(), 1000), FailsWith(kInvalidArgument, reason::kConfigInvalid));
}

INSTANTIATE_TEST_SUITE_P(Shares, NoShare,
                         ::testing::Values("0%", "101%", "-5%", "%", "x%", "5x%", "nan%", "5%%",
                                           ""));

TEST(Budget, OfADaemonThatComesBackHasRoomForWhatWasKept) {
  EXPECT_EQ(ParseBudget("80%", 1000, 0).value(), 800U);
  EXPECT_EQ(ParseBudget("80%", 500, 500).value(), 800U);
  EXPECT_EQ(ParseBudget("80%", 10, 500).value(), 500U);
  EXPECT_EQ(ParseBudget("2KiB", 10, 4096).value(), 2048U);  // somebody has said so
  EXPECT_FALSE(ParseBudget("x%", 10, 0).ok());
}

}  // namespace
}  // namespace ckptd
