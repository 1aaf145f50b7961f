#include "server/daemon/repeated_lines.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(RepeatedLines, AreLeftOutForAWhileAndCounted) {
  RepeatedLines lines;
  const std::chrono::steady_clock::time_point now;
  EXPECT_EQ(lines.Admit("a", now), 0U);
  EXPECT_EQ(lines.Admit("a", now), std::nullopt);
  EXPECT_EQ(lines.Admit("a", now + RepeatedLines::kPause / 2), std::nullopt);
  EXPECT_EQ(lines.Admit("a", now + RepeatedLines::kPause), 2U);
  EXPECT_EQ(lines.Admit("a", now + RepeatedLines::kPause), std::nullopt);
  EXPECT_EQ(lines.Admit("b", now + RepeatedLines::kPause), 0U) << "another line is told at once";
}

}  // namespace
}  // namespace ckptd
