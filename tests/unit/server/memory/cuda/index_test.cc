// The index calculation, with numbers only: nothing is allocated.
#include "server/memory/cuda/kernels/index.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "server/memory/cuda/kernels/copy_ways.h"

namespace ckptd::kernels {
namespace {

// Counts unit by unit, with full divisions.
Place Expected(const CopyTask& task, UnitShape shape, uint64_t unit) {
  uint64_t rest = unit / task.run;
  Place place = {task.source + unit % task.run * shape.source_bytes,
                 task.target + unit % task.run * shape.target_bytes};
  for (uint32_t d = task.dims; d-- > 0;) {
    place.source += rest % task.count[d] * task.source_stride[d];
    place.target += rest % task.count[d] * task.target_stride[d];
    rest /= task.count[d];
  }
  return place;
}

void ExpectTile(const CopyTask& task, UnitShape shape, uint64_t number) {
  Tile tile = {};
  StartTile(task, shape, number, tile);
  for (uint32_t k = 0; k < tile.units; ++k) {
    const Place got = PlaceOf(task, tile, k);
    const uint64_t unit = task.first + number * shape.tile_units() + k;
    const Place wanted = Expected(task, shape, unit);
    ASSERT_EQ(got.source, wanted.source) << "unit " << unit;
    ASSERT_EQ(got.target, wanted.target) << "unit " << unit;
  }
}

constexpr UnitShape kShape = {4, 2, 8};

TEST(KernelIndex, CountsBeyondFourGiBOfUnits) {
  CopyTask task = {};
  task.source = 0x7f0000000000;
  task.run = 3;
  task.dims = 3;
  const uint64_t count[] = {5, 7, uint64_t{1} << 33};
  const uint64_t source[] = {uint64_t{1} << 50, uint64_t{1} << 40, 16};
  const uint64_t target[] = {uint64_t{1} << 49, uint64_t{1} << 39, 6};
  for (uint32_t d = 0; d < 3; ++d) {
    task.count[d] = count[d];
    task.source_stride[d] = source[d];
    task.target_stride[d] = target[d];
  }
  task.first = 1;
  task.last = 3 * 5 * 7 * (uint64_t{1} << 33);
  // Near where the innermost loop carries over, and at the end.
  const uint64_t carry = 3 * (uint64_t{1} << 33) / kShape.tile_units();
  const uint64_t end = (task.last - task.first) / kShape.tile_units();
  for (const uint64_t number : {uint64_t{0}, carry - 1, carry, carry + 1, 9 * carry, end}) {
    ExpectTile(task, kShape, number);
  }
}

TEST(KernelIndex, OneRunOfManyGiB) {
  CopyTask task = {};
  task.run = uint64_t{1} << 40;
  task.last = task.run;
  ExpectTile(task, kShape, task.run / kShape.tile_units() - 1);
}

TEST(KernelIndex, AnyShapeOfEightLoops) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    CopyTask task = {};
    task.run = 1 + random() % (i % 3 == 0 ? 5000 : 5);
    task.dims = static_cast<uint32_t>(random() % (kMaxDims + 1));
    uint64_t runs = 1;
    for (uint32_t d = 0; d < task.dims; ++d) {
      task.count[d] = 1 + random() % (d == 2 ? 3000 : 4);
      task.source_stride[d] = random() % 100000;
      task.target_stride[d] = random() % 100000;
      runs *= task.count[d];
    }
    task.last = task.run * runs;
    task.first = random() % task.last;
    const uint64_t tiles = (task.last - task.first) / kShape.tile_units() + 1;
    ExpectTile(task, kShape, random() % tiles);
    ExpectTile(task, kShape, tiles - 1);
  }
}

TEST(KernelIndex, ATileBehindTheEndIsEmpty) {
  CopyTask task = {};
  task.run = 10;
  task.last = 10;
  Tile tile = {};
  StartTile(task, kShape, 1, tile);
  EXPECT_EQ(tile.units, 0U);
}

TEST(KernelIndex, TasksAreFoundByTheirTiles) {
  // The second task has no tiles.
  const std::vector<uint32_t> first = {0, 3, 3, 4, 900};
  const TaskTable table = {nullptr, first.data(), static_cast<uint32_t>(first.size())};
  EXPECT_EQ(TaskOfTile(table, 0), 0U);
  EXPECT_EQ(TaskOfTile(table, 2), 0U);
  EXPECT_EQ(TaskOfTile(table, 3), 2U);
  EXPECT_EQ(TaskOfTile(table, 899), 3U);
  EXPECT_EQ(TaskOfTile(table, 900), 4U);
  EXPECT_EQ(TaskOfTile(table, 5000), 4U);
}

struct CheckShape {
  uint32_t way;
  int* visited;

  template <typename Way>
  void operator()(Way) const {
    const UnitShape shape = ShapeOf(way);
    EXPECT_EQ(shape.source_bytes, sizeof(typename Way::From)) << way;
    EXPECT_EQ(shape.target_bytes, sizeof(typename Way::To)) << way;
    EXPECT_EQ(shape.per_thread, Way::kPerThread) << way;
    ++*visited;
  }
};

TEST(KernelIndex, WaysAgreeWithTheirShapes) {
  int visited = 0;
  for (uint32_t way = 0; way < kWays; ++way) VisitWay(way, CheckShape{way, &visited});
  EXPECT_EQ(visited, 8 + 12 * 5);
}

}  // namespace
}  // namespace ckptd::kernels
