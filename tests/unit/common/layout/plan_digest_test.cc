#include "common/layout/plan.h"
#include "tests/unit/common/layout/fake_source.h"

namespace ckptd {
namespace {

TEST(Digest, IsEqualForEqualPlansAndDiffersForOthers) {
  FakeSource source;
  source.Add("x", {8});
  const auto digest = [&](uint32_t rank, const Sharding& sharding) {
    return PlanRow(source, {"x"}, sharding, MeshOf({2}), rank).digest;
  };
  EXPECT_EQ(digest(0, OnMesh({ShardOf(0)})), digest(0, OnMesh({ShardOf(0)})));
  EXPECT_NE(digest(0, OnMesh({ShardOf(0)})), digest(1, OnMesh({ShardOf(0)})));
  EXPECT_NE(digest(0, OnMesh({ShardOf(0)})), digest(0, Sharding{}));
}

TEST(Digest, NeverChangesForTheSamePlan) {
  FakeSource source;
  source.Add("x", {4, 6});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(1)}), MeshOf({2}), 1);
  EXPECT_EQ(HexDigest(plan.digest), "4188102ffed7c723");
}

TEST(Digest, OfAGroupDependsOnTheOrderOfItsRanks) {
  EXPECT_NE(CombineDigests({1, 2}), CombineDigests({2, 1}));
  EXPECT_EQ(CombineDigests({1, 2}), CombineDigests({1, 2}));
  EXPECT_NE(CombineDigests({}), CombineDigests({0}));
}

TEST(Digest, IsShownAsSixteenHexDigits) {
  EXPECT_EQ(HexDigest(0x0123456789abcdefu), "0123456789abcdef");
  EXPECT_EQ(HexDigest(0xab), "00000000000000ab");
}

}  // namespace
}  // namespace ckptd
