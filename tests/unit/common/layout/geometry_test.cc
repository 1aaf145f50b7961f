#include <time.h>

#include <limits>

#include "common/base/reasons.h"
#include "common/layout/layout.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

// Global indices along dimension 0 in local order.
std::vector<uint64_t> RowsOf(const LocalGeometry& geometry) {
  std::vector<uint64_t> rows;
  for (const PlacedBox& box : geometry.boxes) {
    EXPECT_EQ(box.local[0], rows.size());
    for (uint64_t i = 0; i < box.global.extents[0]; ++i) {
      rows.push_back(box.global.offsets[0] + i);
    }
  }
  return rows;
}

LocalGeometry Resolve(const Sharding& sharding, const Mesh& mesh, const Shape& shape,
                      uint32_t rank) {
  auto geometry = ResolveSharding(sharding, {mesh}, shape, rank);
  EXPECT_THAT(geometry, IsOk());
  return geometry.ok() ? *std::move(geometry) : LocalGeometry{};
}

std::vector<uint64_t> Rows(const std::vector<Placement>& placements, const Mesh& mesh, uint64_t n,
                           uint32_t rank) {
  return RowsOf(Resolve(OnMesh(placements), mesh, {n}, rank));
}

std::vector<uint64_t> SizesOnFourRanks(uint64_t n) {
  std::vector<uint64_t> sizes;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    sizes.push_back(Resolve(OnMesh({ShardOf(0)}), MeshOf({4}), {n}, rank).local_shape[0]);
  }
  return sizes;
}

TEST(Geometry, ShardsByCeilChunksWithEmptyTails) {
  EXPECT_THAT(SizesOnFourRanks(0), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(SizesOnFourRanks(1), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(SizesOnFourRanks(2), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(SizesOnFourRanks(3), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(SizesOnFourRanks(5), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(SizesOnFourRanks(6), ElementsAre(2, 2, 2, 0));
  EXPECT_THAT(SizesOnFourRanks(7), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(SizesOnFourRanks(8), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(SizesOnFourRanks(9), ElementsAre(3, 3, 3, 0));
  EXPECT_THAT(SizesOnFourRanks(10), ElementsAre(3, 3, 3, 1));
}

TEST(Geometry, ShardsTheLargestDimensionThatSixtyFourBitsCanCount) {
  const auto sizes = SizesOnFourRanks(kHuge);
  EXPECT_THAT(sizes, ElementsAre(kHuge / 4 + 1, kHuge / 4 + 1, kHuge / 4 + 1, kHuge / 4));
}

TEST(Geometry, KeepsOtherDimensionsOfAnEmptyShard) {
  const LocalGeometry geometry = Resolve(OnMesh({ShardOf(0)}), MeshOf({4}), {5, 3}, 3);
  EXPECT_THAT(geometry.local_shape, ElementsAre(0, 3));
  EXPECT_THAT(geometry.boxes, IsEmpty());
  EXPECT_TRUE(geometry.present);
}

TEST(Geometry, SplitsOneDimensionAgainFromLeftToRight) {
  const Mesh mesh = MeshOf({2, 2});
  const std::vector<Placement> twice = {ShardOf(0), ShardOf(0)};
  EXPECT_THAT(Rows(twice, mesh, 5, 0), ElementsAre(0, 1));
  EXPECT_THAT(Rows(twice, mesh, 5, 1), ElementsAre(2));
  EXPECT_THAT(Rows(twice, mesh, 5, 2), ElementsAre(3));
  EXPECT_THAT(Rows(twice, mesh, 5, 3), ElementsAre(4));
  EXPECT_THAT(Rows(twice, mesh, 3, 1), ElementsAre(1));
  EXPECT_THAT(Rows(twice, mesh, 3, 2), ElementsAre(2));
  EXPECT_THAT(Rows(twice, mesh, 3, 3), IsEmpty());
}

TEST(Geometry, ShardsTwoDimensionsOverTwoMeshDimensions) {
  const Mesh mesh = MeshOf({2, 2});
  const Sharding sharding = OnMesh({ShardOf(0), ShardOf(1)});
  const auto box = [&](uint32_t rank) {
    return Resolve(sharding, mesh, {3, 3}, rank).boxes.at(0).global;
  };
  EXPECT_EQ(box(0), (Box{{0, 0}, {2, 2}}));
  EXPECT_EQ(box(1), (Box{{0, 2}, {2, 1}}));
  EXPECT_EQ(box(2), (Box{{2, 0}, {1, 2}}));
  EXPECT_EQ(box(3), (Box{{2, 2}, {1, 1}}));
}

TEST(Geometry, GivesReplicasOfHybridShardingTheSameRows) {
  const Mesh mesh = MeshOf({2, 2});
  for (const uint32_t rank : {0u, 2u}) {
    EXPECT_THAT(Rows({Replicate(), ShardOf(0)}, mesh, 5, rank), ElementsAre(0, 1, 2));
  }
  for (const uint32_t rank : {1u, 3u}) {
    EXPECT_THAT(Rows({Replicate(), ShardOf(0)}, mesh, 5, rank), ElementsAre(3, 4));
  }
}

TEST(Geometry, CountsNegativeDimensionsFromTheEnd) {
  const LocalGeometry geometry = Resolve(OnMesh({ShardOf(-1)}), MeshOf({4}), {5, 3}, 2);
  EXPECT_EQ(geometry.boxes.at(0).global, (Box{{0, 2}, {5, 1}}));
}

TEST(Geometry, TakesCoordinatesFromThePlaceInAPermutedMesh) {
  Mesh mesh = MeshOf({2, 2});
  mesh.ranks = {3, 1, 0, 2};
  EXPECT_THAT(Rows({ShardOf(0), Replicate()}, mesh, 4, 0), ElementsAre(2, 3));
  EXPECT_THAT(Rows({ShardOf(0), Replicate()}, mesh, 4, 3), ElementsAre(0, 1));
}

TEST(Geometry, LeavesOutRanksThatAreNotInTheMesh) {
  Mesh mesh = MeshOf({2});
  mesh.ranks = {4, 5};
  const LocalGeometry geometry = Resolve(OnMesh({ShardOf(0)}), mesh, {8}, 1);
  EXPECT_FALSE(geometry.present);
  EXPECT_THAT(geometry.boxes, IsEmpty());
}

TEST(Geometry, LetsAScalarBeReplicatedOnly) {
  const LocalGeometry geometry = Resolve(OnMesh({Replicate()}), MeshOf({2}), {}, 1);
  EXPECT_EQ(geometry.boxes.size(), 1u);
  EXPECT_EQ(geometry.padded_elements, 1u);
  const auto sharded = ResolveSharding(OnMesh({ShardOf(0)}), {MeshOf({2})}, {}, 0);
  EXPECT_THAT(sharded, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

TEST(Geometry, RefusesADimensionThatTheTensorLacks) {
  for (const int32_t dim : {2, -3}) {
    const auto geometry = ResolveSharding(OnMesh({ShardOf(dim)}), {MeshOf({2})}, {4, 4}, 0);
    EXPECT_THAT(geometry, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  }
}

TEST(Geometry, RefusesShapesWhoseElementsCannotBeCounted) {
  for (const Sharding& sharding : {Sharding{}, OnMesh({ShardOf(0)})}) {
    EXPECT_THAT(ResolveSharding(sharding, {MeshOf({4})}, {kHuge, 2}, 0),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  }
}

TEST(Geometry, RefusesMoreDimensionsThanTorchHas) {
  EXPECT_OK(ResolveSharding(Sharding{}, {}, Shape(64, 1), 0));
  EXPECT_THAT(ResolveSharding(Sharding{}, {}, Shape(65, 1), 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

TEST(StridedShard, GivesFsdpOverTensorParallelEvenRows) {
  const Mesh mesh = MeshOf({2, 2});
  const std::vector<Placement> placements = {StridedShardOf(0, 2), ShardOf(0)};
  EXPECT_THAT(Rows(placements, mesh, 8, 0), ElementsAre(0, 1));
  EXPECT_THAT(Rows(placements, mesh, 8, 1), ElementsAre(4, 5));
  EXPECT_THAT(Rows(placements, mesh, 8, 2), ElementsAre(2, 3));
  EXPECT_THAT(Rows(placements, mesh, 8, 3), ElementsAre(6, 7));
}

TEST(StridedShard, CutsUnevenRowsByTensorParallelFirstAsInMemory) {
  const Mesh mesh = MeshOf({4, 2});
  const std::vector<Placement> placements = {StridedShardOf(0, 2), ShardOf(0)};
  EXPECT_THAT(Rows(placements, mesh, 9, 0), ElementsAre(0, 1));
  EXPECT_THAT(Rows(placements, mesh, 9, 2), ElementsAre(2, 3));
  EXPECT_THAT(Rows(placements, mesh, 9, 4), ElementsAre(4));
  EXPECT_THAT(Rows(placements, mesh, 9, 6), IsEmpty());
  EXPECT_THAT(Rows(placements, mesh, 9, 1), ElementsAre(5));
  EXPECT_THAT(Rows(placements, mesh, 9, 3), ElementsAre(6));
  EXPECT_THAT(Rows(placements, mesh, 9, 5), ElementsAre(7));
  EXPECT_THAT(Rows(placements, mesh, 9, 7), ElementsAre(8));
}

TEST(StridedShard, CutsAfterBothOfTwoLaterMeshDimensions) {
  // HSDP x FSDP x EP x TP: FSDP cuts the parts of EP and TP.
  const Mesh mesh = MeshOf({1, 2, 2, 2});
  const std::vector<Placement> placements = {Replicate(), StridedShardOf(0, 4), ShardOf(0),
                                             ShardOf(0)};
  EXPECT_THAT(Rows(placements, mesh, 16, 0), ElementsAre(0, 1));
  EXPECT_THAT(Rows(placements, mesh, 16, 1), ElementsAre(4, 5));
  EXPECT_THAT(Rows(placements, mesh, 16, 4), ElementsAre(2, 3));
}

TEST(StridedShard, JoinsRowsThatAreNotNeighboursWithoutAMatchingShard) {
  const Mesh mesh = MeshOf({2, 2});
  const std::vector<Placement> placements = {StridedShardOf(0, 2), Replicate()};
  EXPECT_THAT(Rows(placements, mesh, 8, 0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(Rows(placements, mesh, 8, 3), ElementsAre(2, 3, 6, 7));
}

TEST(StridedShard, DistributesNineRowsOverFourRanksLikeTorch) {
  const Mesh mesh = MeshOf({4});
  EXPECT_THAT(Rows({StridedShardOf(0, 2)}, mesh, 9, 0), ElementsAre(0, 1, 5));
  EXPECT_THAT(Rows({StridedShardOf(0, 2)}, mesh, 9, 1), ElementsAre(2, 3, 6));
  EXPECT_THAT(Rows({StridedShardOf(0, 2)}, mesh, 9, 2), ElementsAre(4, 7));
  EXPECT_THAT(Rows({StridedShardOf(0, 2)}, mesh, 9, 3), ElementsAre(8));
}

TEST(StridedShard, MergesNeighbouringRowsIntoOneBox) {
  const LocalGeometry geometry = Resolve(OnMesh({StridedShardOf(0, 3)}), MeshOf({1}), {9, 2}, 0);
  ASSERT_EQ(geometry.boxes.size(), 1u);
  EXPECT_EQ(geometry.boxes[0].global, (Box{{0, 0}, {9, 2}}));
}

TEST(StridedShard, RefusesToScatterATensorIntoTooManyRuns) {
  const auto geometry =
      ResolveSharding(OnMesh({StridedShardOf(0, 4'000'000'000u)}), {MeshOf({2})}, {kHuge}, 0);
  EXPECT_THAT(geometry, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

TEST(Padding, FillsEveryRankToTheFirstChunk) {
  Sharding sharding = OnMesh({ShardOf(0)});
  sharding.padded_dim = 0;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(Resolve(sharding, MeshOf({4}), {5, 3}, rank).padded_elements, 6u);
  }
}

TEST(Padding, FollowsTheTensorParallelPartUnderFsdp) {
  // n=5, tp=2: parts of 3 and 2 rows; dp=2 cuts them into chunks of 2 and 1.
  Sharding sharding = OnMesh({StridedShardOf(0, 2), ShardOf(0)});
  sharding.padded_dim = 0;
  const Mesh mesh = MeshOf({2, 2});
  EXPECT_EQ(Resolve(sharding, mesh, {5, 1}, 0).padded_elements, 2u);
  EXPECT_EQ(Resolve(sharding, mesh, {5, 1}, 1).padded_elements, 1u);
  EXPECT_EQ(Resolve(sharding, mesh, {5, 1}, 2).padded_elements, 2u);
  EXPECT_EQ(Resolve(sharding, mesh, {5, 1}, 3).padded_elements, 1u);
}

TEST(Padding, IsByTheLastDimensionOfTheMeshThatCuts) {
  // fully_shard over dp = 2 where tp = 1 or ep = 1 has cut nothing.
  const std::vector<std::pair<Mesh, std::vector<Placement>>> cases = {
      {MeshOf({2, 1}), {ShardOf(0), ShardOf(0)}},
      {MeshOf({1, 2}), {ShardOf(0), ShardOf(0)}},
      {MeshOf({1, 2, 1}), {Replicate(), ShardOf(0), ShardOf(0)}},
      {MeshOf({2, 1, 1}), {StridedShardOf(0, 1), ShardOf(0), ShardOf(0)}},
  };
  for (const auto& [mesh, placements] : cases) {
    Sharding sharding = OnMesh(placements);
    sharding.padded_dim = 0;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const LocalGeometry geometry = Resolve(sharding, mesh, {5, 3}, rank);
      EXPECT_THAT(geometry.local_shape, ElementsAre(rank == 0 ? 3 : 2, 3));
      EXPECT_EQ(geometry.padded_elements, 9u);
    }
  }
}

TEST(Padding, RefusesAnotherDimensionThatDoesNotDivideEvenly) {
  Sharding sharding = OnMesh({ShardOf(1)});
  sharding.padded_dim = 1;
  EXPECT_OK(ResolveSharding(sharding, {MeshOf({2})}, {3, 4}, 0));
  EXPECT_THAT(ResolveSharding(sharding, {MeshOf({2})}, {3, 5}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
}

Sharding Boxes(std::vector<Box> boxes) {
  Sharding sharding;
  sharding.boxes = std::move(boxes);
  return sharding;
}

TEST(ExplicitBoxes, LieOneAfterTheOtherInTheOrderGiven) {
  const LocalGeometry geometry =
      Resolve(Boxes({{{4, 0}, {2, 3}}, {{0, 0}, {1, 3}}}), MeshOf({1}), {6, 3}, 0);
  EXPECT_THAT(geometry.local_shape, ElementsAre(3, 3));
  EXPECT_THAT(RowsOf(geometry), ElementsAre(4, 5, 0));
}

TEST(ExplicitBoxes, MayHoldNothing) {
  const LocalGeometry geometry = Resolve(Boxes({{{6, 0}, {0, 3}}}), MeshOf({1}), {6, 3}, 0);
  EXPECT_THAT(geometry.local_shape, ElementsAre(0, 3));
  EXPECT_THAT(geometry.boxes, IsEmpty());
}

void ExpectMismatch(std::vector<Box> boxes, const std::string& says) {
  const auto geometry = ResolveSharding(Boxes(std::move(boxes)), {}, {6, 3}, 0);
  EXPECT_THAT(geometry, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(geometry, Says(says));
}

TEST(ExplicitBoxes, MustEndInsideTheTensor) {
  ExpectMismatch({{{5, 0}, {2, 3}}}, "outside");
  ExpectMismatch({{{7, 0}, {0, 3}}}, "outside");
  ExpectMismatch({{{1, 0}, {kHuge, 3}}}, "outside");
}

TEST(ExplicitBoxes, MustNotOverlap) {
  ExpectMismatch({{{0, 0}, {2, 3}}, {{4, 0}, {1, 3}}, {{1, 0}, {1, 3}}}, "overlaps");
}

TEST(ExplicitBoxes, MayTouchEachOther) {
  EXPECT_OK(ResolveSharding(Boxes({{{0, 0}, {2, 1}}, {{0, 1}, {2, 1}}, {{2, 0}, {1, 1}}}), {},
                            {6, 3}, 0));
  EXPECT_OK(ResolveSharding(Boxes({{{0, 1}, {2, 1}}, {{1, 0}, {2, 1}}}), {}, {6, 3}, 0));
}

// Long rows, each shifted by a column: along dimension 0 all pairs overlap.
TEST(ExplicitBoxes, AreComparedInNoTimeHoweverTheyLie) {
  constexpr uint64_t kMany = 30'000;
  std::vector<Box> boxes;
  for (uint64_t i = 0; i < kMany; ++i) boxes.push_back({{i, i}, {kMany, 1}});
  timespec begin = {};
  timespec end = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
  EXPECT_OK(ResolveSharding(Boxes(std::move(boxes)), {}, {2 * kMany, kMany}, 0));
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
  const double seconds = static_cast<double>(end.tv_sec - begin.tv_sec) +
                         static_cast<double>(end.tv_nsec - begin.tv_nsec) * 1e-9;
  // takes hundredths of a second; comparing all pairs takes several seconds
  EXPECT_LT(seconds, 0.8);
}

TEST(ExplicitBoxes, MustAgreeInAllButTheFirstDimension) {
  ExpectMismatch({{{0, 0}, {2, 3}}, {{2, 0}, {2, 2}}}, "extents must agree");
}

TEST(ExplicitBoxes, MustHaveTheDimensionsOfTheTensor) { ExpectMismatch({{{0}, {2}}}, "needs 2"); }

TEST(ShardingValue, MustNameAMeshThatExists) {
  EXPECT_THAT(ResolveSharding(OnMesh({ShardOf(0)}), {}, {4}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

TEST(ShardingValue, MustHaveOnePlacementPerMeshDimension) {
  EXPECT_THAT(ResolveSharding(OnMesh({ShardOf(0)}), {MeshOf({2, 2})}, {4}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

TEST(ShardingValue, MustNotSplitByZero) {
  EXPECT_THAT(ResolveSharding(OnMesh({StridedShardOf(0, 0)}), {MeshOf({2})}, {4}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

TEST(ShardingValue, MustNotUseAMeshWhoseRanksDoNotFillIt) {
  Mesh mesh = MeshOf({2});
  mesh.shape = {0};
  EXPECT_THAT(ResolveSharding(OnMesh({ShardOf(0)}), {mesh}, {4}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
  mesh.shape = {3};
  EXPECT_THAT(ResolveSharding(OnMesh({ShardOf(0)}), {mesh}, {4}, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid));
}

}  // namespace
}  // namespace ckptd
