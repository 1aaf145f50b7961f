#include "client/cli/closest.h"

#include <gtest/gtest.h>

namespace ckptd::cli {
namespace {

TEST(Closest, IsWhatALetterMoreLessOrOtherMakesOfTheWord) {
  const std::vector<std::string> known = {"load", "unload", "list"};
  EXPECT_EQ(Closest("lod", known), "load");
  EXPECT_EQ(Closest("unloadd", known), "unload");
  EXPECT_EQ(Closest("lisst", known), "list");
  EXPECT_EQ(Closest("lost", known), "list");
  EXPECT_EQ(Closest("list", known), "list");
}

TEST(Closest, IsNothingForWhatIsFarFromAll) {
  EXPECT_EQ(Closest("bogus", {"load", "list"}), "");
  EXPECT_EQ(Closest("ab", {"ba", "xy"}), "");
  EXPECT_EQ(Closest("", {"a"}), "");
  EXPECT_EQ(Closest("load", {}), "");
  EXPECT_EQ(Closest(std::string(1 << 20, 'a'), {"a"}), "");
}

}  // namespace
}  // namespace ckptd::cli
