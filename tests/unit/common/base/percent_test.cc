#include "common/base/percent.h"

#include <gtest/gtest.h>

#include <string>

namespace ckptd {
namespace {

TEST(Percent, LeavesOnlyWhatUrisReserveForNothing) {
  EXPECT_EQ(PercentEncoded("/run/a-1._~/Z"), "/run/a-1._~/Z");
  EXPECT_EQ(PercentEncoded("%?# :\n\xff"), "%25%3F%23%20%3A%0A%FF");
}

TEST(Percent, DecodesEveryByteThatWasEncoded) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(PercentDecoded(PercentEncoded(all)), all);
  EXPECT_EQ(PercentDecoded("%c3%A9"), "\xc3\xa9");
}

TEST(Percent, ASignWithoutTwoHexDigitsStandsForItself) {
  for (const std::string text : {"%", "%4", "%zz", "%4g", "%-1", "%+1", "% 1", "%%"}) {
    EXPECT_EQ(PercentDecoded(text), text);
  }
}

}  // namespace
}  // namespace ckptd
