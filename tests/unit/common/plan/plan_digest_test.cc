#include "common/plan/plan.h"
#include "tests/testing/fake_source.h"

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

TEST(Digest, DiffersWhenATensorLiesElsewhereOrHasAnotherName) {
  FakeSource source;
  source.Add("x", {8});
  source.Add("y", {8});
  const auto digest = [&source] {
    return PlanRow(source, {"x", "y"}, Sharding{}, MeshOf({1}), 0).digest;
  };
  const uint64_t before = digest();
  std::vector<TensorEntry>& tensors = source.index().tensors;
  std::swap(tensors[0].pieces, tensors[1].pieces);
  EXPECT_NE(digest(), before);
  std::swap(tensors[0].pieces, tensors[1].pieces);
  EXPECT_EQ(digest(), before);
  EXPECT_NE(PlanRow(source, {"x"}, Sharding{}, MeshOf({1}), 0).digest,
            PlanRow(source, {"y"}, Sharding{}, MeshOf({1}), 0).digest);
}

TEST(Digest, NeverChangesForTheSamePlan) {
  FakeSource source;
  source.Add("x", {4, 6});
  const RankPlan plan = PlanRow(source, {"x"}, OnMesh({ShardOf(1)}), MeshOf({2}), 1);
  EXPECT_EQ(HexDigest(plan.digest), "808053bd6b639d9f");
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
