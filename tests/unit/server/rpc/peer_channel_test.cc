#include "server/rpc/peer_channel.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(ReachableAddress, OfAMemberThatDoesNotKnowItsOwnIsTheOneItCallsFrom) {
  EXPECT_EQ(ReachableAddress("[::]:4000", "ipv4:10.0.0.7:51234"), "10.0.0.7:4000");
  EXPECT_EQ(ReachableAddress("[::]:4000", "ipv6:[fd00::7]:51234"), "[fd00::7]:4000");
  EXPECT_EQ(ReachableAddress("[::]:4000", "ipv6:%5Bfd00::7%5D:51234"), "[fd00::7]:4000");
}

TEST(ReachableAddress, IsTheOneThatWasSaid) {
  EXPECT_EQ(ReachableAddress("10.0.0.9:4000", "ipv4:10.0.0.7:51234"), "10.0.0.9:4000");
  EXPECT_EQ(ReachableAddress("node1:4000", "ipv4:10.0.0.7:51234"), "node1:4000");
  EXPECT_EQ(ReachableAddress("", "ipv4:10.0.0.7:51234"), "");
}

TEST(ReachableAddress, StaysUnknownWhereTheCallerHasNone) {
  EXPECT_EQ(ReachableAddress("[::]:4000", "unix:/run/a.sock"), "[::]:4000");
  EXPECT_EQ(ReachableAddress("[::]:4000", ""), "[::]:4000");
  EXPECT_EQ(ReachableAddress("[::]:4000", "ipv4:"), "[::]:4000");
}

}  // namespace
}  // namespace ckptd
