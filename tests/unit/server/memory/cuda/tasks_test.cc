// Copies of a plan as tasks: units, windows, refusals, tables. Addresses are numbers.
#include "server/memory/cuda/kernels/tasks.h"

#include <gtest/gtest.h>

#include <cstring>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/memory/cuda/kernels/copy_ways.h"

namespace ckptd::kernels {
namespace {

constexpr uint64_t kBlockAt = 0x10000;
constexpr uint64_t kTargetAt = 0x7f0000000000;

BlockCopy OneRun(Dtype from, Dtype to, uint64_t begin, uint64_t bytes) {
  BlockCopy copy;
  copy.from = from;
  copy.to = to;
  copy.begin = begin;
  copy.run_bytes = bytes;
  copy.target = kTargetAt;
  copy.room = uint64_t{1} << 50;
  return copy;
}

void AddLoop(BlockCopy& copy, uint64_t count, uint64_t source_stride, uint64_t target_stride) {
  copy.count[copy.dims] = count;
  copy.source_stride[copy.dims] = source_stride;
  copy.target_stride[copy.dims] = target_stride;
  ++copy.dims;
}

std::vector<CopyTask> Tasks(const SourceBlock& block, const BlockCopy& copy) {
  std::vector<CopyTask> tasks;
  EXPECT_TRUE(AppendTasks(block, copy, tasks).ok());
  return tasks;
}

std::string Refusal(const SourceBlock& block, const BlockCopy& copy) {
  std::vector<CopyTask> tasks;
  const absl::Status status = AppendTasks(block, copy, tasks);
  EXPECT_EQ(ReasonOf(status), reason::kCoverage) << status;
  EXPECT_TRUE(tasks.empty());
  return MessageOf(status);
}

TEST(KernelTasks, AlignedRowsMoveInTheWidestUnits) {
  BlockCopy copy = OneRun(Dtype::kBF16, Dtype::kBF16, 4096, 64);
  AddLoop(copy, 10, 256, 64);
  const auto tasks = Tasks({kBlockAt, 4096, 1 << 20}, copy);
  ASSERT_EQ(tasks.size(), 1U);
  EXPECT_EQ(ShapeOf(tasks[0].way).source_bytes, 16U);
  EXPECT_EQ(tasks[0].run, 4U);
  EXPECT_EQ(tasks[0].last, 40U);
}

uint32_t WayOfRows(uint64_t skew, uint64_t row, uint64_t source_stride, uint64_t target_stride) {
  BlockCopy copy = OneRun(Dtype::kU8, Dtype::kU8, 4096, row);
  AddLoop(copy, 10, source_stride, target_stride);
  return Tasks({kBlockAt + skew, 4096, 1 << 20}, copy).at(0).way;
}

TEST(KernelTasks, UnitsShrinkToWhatRowsAndTargetsAllow) {
  EXPECT_EQ(WayOfRows(0, 64, 256, 72), VerbatimWay(3, false));
  EXPECT_EQ(WayOfRows(0, 60, 256, 64), VerbatimWay(2, false));
  EXPECT_EQ(WayOfRows(0, 30, 256, 64), VerbatimWay(1, false));
  EXPECT_EQ(WayOfRows(0, 64, 256, 65), VerbatimWay(0, false));
}

TEST(KernelTasks, UnalignedSourcesDoNotShrinkUnits) {
  EXPECT_EQ(WayOfRows(4, 64, 256, 64), VerbatimWay(4, true));
  EXPECT_EQ(WayOfRows(8, 64, 256, 64), VerbatimWay(3, false)) << "straight enough";
  EXPECT_EQ(WayOfRows(0, 64, 257, 64), VerbatimWay(4, true)) << "each row otherwise";
  EXPECT_EQ(WayOfRows(4, 64, 256, 72), VerbatimWay(3, true));
  EXPECT_EQ(WayOfRows(3, 60, 256, 64), VerbatimWay(2, true));
  EXPECT_EQ(WayOfRows(3, 62, 256, 64), VerbatimWay(0, false)) << "not worth it";
}

TEST(KernelTasks, CastsAreAsWideAsTheTargetAllows) {
  const auto elements = [](uint64_t skew, uint64_t target) {
    BlockCopy copy = OneRun(Dtype::kF32, Dtype::kBF16, 0, 4096);
    copy.target += target;
    const uint32_t way = Tasks({kBlockAt + skew, 0, 1 << 20}, copy).at(0).way;
    return static_cast<Elements>(way - CastWay(Float::kF32, Float::kBF16, Elements{}));
  };
  EXPECT_EQ(elements(16, 0), Elements::kWidest);
  EXPECT_EQ(elements(8, 0), Elements::kWide) << "straight enough";
  EXPECT_EQ(elements(4, 0), Elements::kWidestUnaligned);
  EXPECT_EQ(elements(1, 0), Elements::kWidestUnaligned);
  EXPECT_EQ(elements(8, 4), Elements::kWide);
  EXPECT_EQ(elements(4, 4), Elements::kSingle);
  EXPECT_EQ(elements(0, 2), Elements::kSingle);
  EXPECT_EQ(elements(2, 2), Elements::kUnaligned);
}

TEST(KernelTasks, EndsThatTheWidestUnitsCannotTakeAreTasksOfTheirOwn) {
  const auto tasks = Tasks({kBlockAt, 0, 1 << 20}, OneRun(Dtype::kF32, Dtype::kBF16, 0, 4 * 1001));
  ASSERT_EQ(tasks.size(), 2U);
  EXPECT_EQ(tasks[0].way, CastWay(Float::kF32, Float::kBF16, Elements::kWidest));
  EXPECT_EQ(tasks[0].last, 250U);
  EXPECT_EQ(tasks[1].way, CastWay(Float::kF32, Float::kBF16, Elements::kSingle));
  EXPECT_EQ(tasks[1].first, 1000U);
  EXPECT_EQ(tasks[1].last, 1001U);
}

TEST(KernelTasks, ABlockThatLacksTheCopyGivesNone) {
  BlockCopy copy = OneRun(Dtype::kU8, Dtype::kU8, 1000, 10);
  AddLoop(copy, 3, 100, 10);
  EXPECT_TRUE(Tasks({kBlockAt, 0, 1000}, copy).empty());
  EXPECT_TRUE(Tasks({kBlockAt, 1210, 1000}, copy).empty());
  EXPECT_TRUE(Tasks({kBlockAt, 1010, 90}, copy).empty()) << "a gap between runs";
  EXPECT_TRUE(Tasks({kBlockAt, 1005, 0}, copy).empty());
}

TEST(KernelTasks, ABlockTakesItsStretchOfTheCopy) {
  BlockCopy copy = OneRun(Dtype::kU8, Dtype::kU8, 1000, 16);
  AddLoop(copy, 100, 32, 16);
  // From the middle of run 3 into the gap after run 7.
  const auto tasks = Tasks({kBlockAt, 1000 + 3 * 32 + 8, 4 * 32 + 12}, copy);
  ASSERT_EQ(tasks.size(), 1U);
  const uint64_t unit = ShapeOf(tasks[0].way).source_bytes;
  EXPECT_EQ(tasks[0].first * unit, 3U * 16 + 8);
  EXPECT_EQ(tasks[0].last * unit, 8U * 16);
  EXPECT_EQ(tasks[0].source, kBlockAt - 3 * 32 - 8) << "where the whole copy would begin";
}

TEST(KernelTasks, ABlockThatBeginsWithinAWideUnitBeginsWithBytes) {
  BlockCopy copy = OneRun(Dtype::kU8, Dtype::kU8, 1000, 16);
  AddLoop(copy, 100, 32, 16);
  const auto tasks = Tasks({kBlockAt + 4, 1000 + 3 * 32 + 8, 4 * 32 + 12}, copy);
  ASSERT_EQ(tasks.size(), 2U);
  EXPECT_EQ(tasks[0].way, VerbatimWay(0, false));
  EXPECT_EQ(tasks[0].first, 3U * 16 + 8);
  EXPECT_EQ(tasks[0].last, 4U * 16);
  EXPECT_EQ(tasks[1].way, VerbatimWay(4, true));
  EXPECT_EQ(tasks[1].first, 4U);
  EXPECT_EQ(tasks[1].last, 8U);
}

TEST(KernelTasks, ACopyMayNotLeaveItsRoom) {
  BlockCopy copy = OneRun(Dtype::kF32, Dtype::kF64, 0, 16);
  AddLoop(copy, 3, 16, 100 * 8);
  copy.room = 2 * 800 + 32;
  EXPECT_EQ(Tasks({kBlockAt, 0, 4096}, copy).size(), 1U);
  copy.room -= 1;
  EXPECT_NE(Refusal({kBlockAt, 0, 4096}, copy).find("leaves its tensor"), std::string::npos);
}

TEST(KernelTasks, MalformedCopiesAreRefused) {
  const SourceBlock block = {kBlockAt, 0, 4096};
  Refusal(block, OneRun(Dtype::kI32, Dtype::kF32, 0, 4));
  Refusal(block, OneRun(Dtype::kF32, Dtype::kBF16, 0, 6));
  Refusal(block, OneRun(Dtype::kU8, Dtype::kU8, 0, 0));
  Refusal({kBlockAt, 0, 4095}, OneRun(Dtype::kF32, Dtype::kBF16, 0, 4096));
  Refusal({kBlockAt, ~uint64_t{0}, 2}, OneRun(Dtype::kU8, Dtype::kU8, 0, 1));
  BlockCopy odd_target = OneRun(Dtype::kF32, Dtype::kBF16, 0, 4);
  odd_target.target += 1;
  Refusal(block, odd_target);
  BlockCopy too_many = OneRun(Dtype::kU8, Dtype::kU8, 0, 1);
  too_many.dims = kMaxDims + 1;
  Refusal(block, too_many);
  BlockCopy overlapping = OneRun(Dtype::kU8, Dtype::kU8, 0, 8);
  AddLoop(overlapping, 2, 7, 8);
  Refusal(block, overlapping);
  BlockCopy endless = OneRun(Dtype::kU8, Dtype::kU8, 0, 8);
  AddLoop(endless, uint64_t{1} << 40, uint64_t{1} << 40, 8);
  Refusal(block, endless);
}

TEST(KernelTasks, ATableNumbersTilesThrough) {
  std::vector<CopyTask> tasks =
      Tasks({kBlockAt, 0, 1 << 20}, OneRun(Dtype::kU8, Dtype::kU8, 0, 100'000));
  const uint64_t tiles = TilesOf(tasks[0]);
  EXPECT_EQ(tiles, (100'000U / 16 + 1023) / 1024);
  tasks.push_back(tasks[0]);
  alignas(16) std::byte memory[2 * (sizeof(CopyTask) + 4)] = {};
  ASSERT_EQ(TableBytes(2), sizeof memory);
  EXPECT_EQ(WriteTable(tasks, memory).value(), 2 * tiles);
  const TaskTable table = TableAt(reinterpret_cast<uint64_t>(memory), 2);
  EXPECT_EQ(table.first_tile[1], tiles);
  EXPECT_EQ(table.tasks[1].last, tasks[1].last);
  EXPECT_FALSE(WriteTable(tasks, std::span(memory).first(sizeof memory - 1)).ok());
}

TEST(KernelTasks, ATableOfMoreTilesThanALaunchTakesIsRefused) {
  const auto tasks =
      Tasks({1, 0, uint64_t{1} << 46}, OneRun(Dtype::kU8, Dtype::kU8, 0, uint64_t{1} << 46));
  alignas(16) std::byte memory[sizeof(CopyTask) + 4] = {};
  EXPECT_EQ(ReasonOf(WriteTable(tasks, memory).status()), reason::kInvalidRequest);
}

}  // namespace
}  // namespace ckptd::kernels
