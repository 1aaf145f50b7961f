#include "server/group/holdings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class HoldingsTest : public ::testing::Test {
 protected:
  static Membership::Options ThreeRanks() {
    Membership::Options options;
    options.self.world_size = 3;
    return options;
  }

  Membership members_{ThreeRanks()};
  Holdings holdings_{members_};
};

TEST_F(HoldingsTest, CountsFollowWhatRanksSayAndWhatWasLoaded) {
  holdings_.Set(0, {"a", "b"});
  holdings_.Set(1, {"a"});
  holdings_.Set(1, {"a"});
  holdings_.Add("b", {0, 2});
  holdings_.Add("b", {2});
  EXPECT_THAT(holdings_.Count(0, {}), ElementsAre(Pair("a", 2), Pair("b", 2)));
  EXPECT_THAT(holdings_.Count(0, {"a"}), ElementsAre(Pair("b", 2)));
  holdings_.Set(0, {"b", "c"});
  holdings_.Set(2, {});
  EXPECT_THAT(holdings_.Count(0, {}), ElementsAre(Pair("b", 1), Pair("c", 1)));
  EXPECT_THAT(holdings_.Count(1, {}), ElementsAre(Pair("a", 1)));
  holdings_.Set(3, {"a"});
  EXPECT_THAT(holdings_.Count(3, {}), IsEmpty()) << "there is no such rank";
}

}  // namespace
}  // namespace ckptd
