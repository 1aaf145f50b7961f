#include "client/cli/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace ckptd::cli {
namespace {

TEST(HumanBytes, KeepsThreeDigits) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1000), "1.0 kB");
  EXPECT_EQ(HumanBytes(15'250'000'000), "15.2 GB");
  EXPECT_EQ(HumanBytes(153'400'000'000), "153 GB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "18.4 EB");
}

TEST(HumanBytes, NeverPrintsAThousandOfAUnit) {
  EXPECT_EQ(HumanBytes(99'949), "99.9 kB");
  EXPECT_EQ(HumanBytes(99'950), "100 kB");
  EXPECT_EQ(HumanBytes(999'499), "999 kB");
  EXPECT_EQ(HumanBytes(999'500), "1.0 MB");
}

TEST(HumanRate, HasNoWordForNonsense) {
  EXPECT_EQ(HumanRate(4.5e9), "4.5 GB/s");
  EXPECT_EQ(HumanRate(0), "-");
  EXPECT_EQ(HumanRate(-1), "-");
  EXPECT_EQ(HumanRate(std::numeric_limits<double>::quiet_NaN()), "-");
  EXPECT_EQ(HumanRate(std::numeric_limits<double>::infinity()), "-");
}

TEST(HumanDuration, ChangesItsUnits) {
  using Seconds = std::chrono::duration<double>;
  EXPECT_EQ(HumanDuration(Seconds(0.12)), "120 ms");
  EXPECT_EQ(HumanDuration(Seconds(3.42)), "3.4 s");
  EXPECT_EQ(HumanDuration(Seconds(59.4)), "59 s");
  EXPECT_EQ(HumanDuration(Seconds(125)), "2 min 5 s");
  EXPECT_EQ(HumanDuration(Seconds(12'000)), "3 h 20 min");
  EXPECT_EQ(HumanDuration(Seconds(180'000)), "2 d 2 h");
  EXPECT_EQ(HumanDuration(Seconds(-5)), "0 ms");
}

TEST(Shorten, CutsBetweenCharacters) {
  EXPECT_EQ(Shorten("abcdef", 6), "abcdef");
  EXPECT_EQ(Shorten("abcdef", 5), "ab...");
  EXPECT_EQ(Shorten("éééééé", 5), "éé...");
  EXPECT_EQ(Shorten("abcdef", 2), "..");
}

}  // namespace
}  // namespace ckptd::cli
