#include "common/plan/plan.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

std::vector<RankPlan> PlanAll(FakeSource& source, const Sharding& sharding, const Mesh& mesh) {
  std::vector<RankPlan> plans;
  for (const uint32_t rank : mesh.ranks) {
    std::vector<std::string> names;
    for (const TensorEntry& tensor : source.index().tensors) names.push_back(tensor.name);
    auto plan = PlanRank(source.index(), AskFor(names, sharding, mesh, rank), {});
    EXPECT_THAT(plan, IsOk());
    if (plan.ok()) plans.push_back(*std::move(plan));
  }
  return plans;
}

TEST(ReadBytes, CountsReplicasOnce) {
  FakeSource source;
  source.Add("a", {5, 3});
  source.Add("b", {7});
  EXPECT_THAT(ReadBytesPerFile(source.index(), PlanAll(source, Sharding{}, MeshOf({3}))),
              ElementsAre((15 + 7) * 4));
}

TEST(ReadBytes, AddsUpDisjointRows) {
  FakeSource source;
  source.Add("a", {5, 3});
  EXPECT_THAT(
      ReadBytesPerFile(source.index(), PlanAll(source, OnMesh({ShardOf(0)}), MeshOf({4}))),
      ElementsAre(60));
}

TEST(ReadBytes, AddsUpUnevenColumns) {
  FakeSource source;
  source.Add("a", {6, 7, 5});
  source.Add("b", {6, 5, 5});
  EXPECT_THAT(
      ReadBytesPerFile(source.index(), PlanAll(source, OnMesh({ShardOf(1)}), MeshOf({3}))),
      ElementsAre(6 * 7 * 5 * 4 + 6 * 5 * 5 * 4));
}

TEST(ReadBytes, CountsTheColumnsOfOneRankOnly) {
  FakeSource source;
  source.Add("a", {6, 8});
  std::vector<RankPlan> plans = PlanAll(source, OnMesh({ShardOf(1)}), MeshOf({4}));
  plans.resize(1);
  EXPECT_THAT(ReadBytesPerFile(source.index(), plans), ElementsAre(6 * 2 * 4));
}

TEST(ReadBytes, AddsUpTilesOfTwoDimensions) {
  FakeSource source;
  source.Add("a", {5, 7, 3});
  EXPECT_THAT(ReadBytesPerFile(source.index(), PlanAll(source, OnMesh({ShardOf(0), ShardOf(1)}),
                                                       MeshOf({2, 3}))),
              ElementsAre(5 * 7 * 3 * 4));
}

TEST(ReadBytes, CountsColumnsOfRowsThatAnotherRankReadsWholeOnce) {
  FakeSource source;
  source.Add("a", {6, 8});
  std::vector<RankPlan> plans = PlanAll(source, OnMesh({ShardOf(1)}), MeshOf({4}));
  plans.push_back(PlanAll(source, Sharding{}, MeshOf({1})).at(0));
  EXPECT_THAT(ReadBytesPerFile(source.index(), plans), ElementsAre(6 * 8 * 4));
}

TEST(ReadBytes, CountsOverlapsOfDifferentGridsExactly) {
  FakeSource source;
  source.Add("a", {4, 6});
  std::vector<RankPlan> plans = PlanAll(source, OnMesh({ShardOf(1)}), MeshOf({3}));
  plans.resize(1);  // columns 0 and 1
  std::vector<RankPlan> rows = PlanAll(source, OnMesh({ShardOf(0)}), MeshOf({2}));
  plans.push_back(rows[0]);  // rows 0 and 1
  EXPECT_THAT(ReadBytesPerFile(source.index(), plans), ElementsAre((2 * 6 + 2 * 2) * 4));
  std::swap(plans[0], plans[1]);
  EXPECT_THAT(ReadBytesPerFile(source.index(), plans), ElementsAre((2 * 6 + 2 * 2) * 4));
}

TEST(ReadBytes, CountsEqualGridsThatAreShiftedByRowsExactly) {
  FakeSource source;
  source.Add("a", {5, 6});
  std::vector<RankPlan> plans;
  for (const uint64_t first_row : {0u, 1u}) {
    Sharding columns;
    columns.boxes = {Box{{first_row, 0}, {4, 2}}};
    plans.push_back(PlanRow(source, {"a"}, columns, MeshOf({1}), 0));
  }
  EXPECT_THAT(ReadBytesPerFile(source.index(), plans), ElementsAre(5 * 2 * 4));
}

TEST(ReadBytes, CountsNothingOfACopyWithoutRuns) {
  FakeSource source;
  source.Add("a", {4, 6});
  std::vector<RankPlan> plans = PlanAll(source, OnMesh({ShardOf(1)}), MeshOf({2}));
  plans.resize(1);
  CopyOp empty = plans[0].ops[0];
  empty.count[0] = 0;
  empty.file_offset += 24;
  empty.run_bytes = 1000;
  plans[0].ops.push_back(empty);
  EXPECT_THAT(ReadBytesPerFile(source.index(), plans), ElementsAre(4 * 3 * 4));
}

TEST(ReadBytes, NamesEveryFile) {
  FakeSource source;
  source.Add("a", {4});
  source.index().files.resize(3);
  EXPECT_THAT(ReadBytesPerFile(source.index(), PlanAll(source, Sharding{}, MeshOf({1}))),
              ElementsAre(16, 0, 0));
}

}  // namespace
}  // namespace ckptd
