#include "server/transfer/schedule.h"

#include <gtest/gtest.h>

#include <limits>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Adds bytes [from, from + bytes) of the file's tensor at `offset` to a rank.
void AddSlice(World& world, size_t rank, uint64_t offset, uint64_t from, uint64_t bytes) {
  const uint64_t shape[3] = {1, 1, from + bytes};
  world.AddTensor(rank, 0, offset, Dtype::kU8, Dtype::kU8, shape, {{0, 0, from}, {1, 1, bytes}});
}

TEST(Schedule, ReadsOnceWhatSeveralRanksWant) {
  World world(1, 4);
  const uint64_t offset = world.AddBytes(0, 1000, 1);
  for (size_t rank = 0; rank < 4; ++rank) AddSlice(world, rank, offset, 0, 1000);
  world.Finish(kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  ASSERT_EQ(schedule.copies.size(), 1U);
  EXPECT_EQ(schedule.copies[0].destinations, 4U);
}

TEST(Schedule, CutsAContiguousCopyWhereItsDigestBlocksEnd) {
  World world(1, 1);
  const uint64_t offset = world.AddBytes(0, 5 * kMiB, 1);
  AddSlice(world, 0, offset, 100, 3 * kMiB + 5);
  world.Finish(8 * kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  for (size_t i = 0; i + 1 < schedule.items.size(); ++i) {
    EXPECT_EQ((schedule.items[i].end - offset - 100) % kDigestBlockBytes, 0U) << i;
  }
}

TEST(Schedule, JoinsTinyTensorsIntoOneItem) {
  World world(1, 1);
  for (int i = 0; i < 100; ++i) AddSlice(world, 0, world.AddBytes(0, 64, 1), 0, 64);
  world.Finish(kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  EXPECT_EQ(schedule.items.size(), 1U);
}

// Each block that is read looks at all copies of its item.
TEST(Schedule, JoinsNoMoreThanSomeThousandTinyTensors) {
  World world(1, 1);
  for (int i = 0; i < 10'000; ++i) AddSlice(world, 0, world.AddBytes(0, 8, 1), 0, 8);
  world.Finish(kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  ASSERT_EQ(schedule.copies.size(), 10'000u);
  for (const WorkItem& item : schedule.items) EXPECT_LE(item.last_copy - item.first_copy, 4096u);
}

TEST(Schedule, DoesNotJoinTensorsThatLieFarApart) {
  World world(1, 1);
  AddSlice(world, 0, world.AddBytes(0, 64, 1), 0, 64);
  world.AddBytes(0, 512 << 10, 1);
  AddSlice(world, 0, world.AddBytes(0, 64, 1), 0, 64);
  world.Finish(kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  EXPECT_EQ(schedule.items.size(), 2U);
}

// Two bytes that lie `apart`, in a file of `file_bytes`.
class TwoBytes {
 public:
  TwoBytes(uint64_t apart, uint64_t file_bytes) {
    index_.files.push_back({"/sparse", file_bytes, "2", "4", "1", 3});
    PlannedTensor tensor;
    tensor.name = "w";
    tensor.dtype = Dtype::kU8;
    tensor.shape = {2, 1};
    tensor.bytes = tensor.padded_bytes = 2;
    plan_.tensors.push_back(tensor);
    CopyOp op;
    op.from = op.to = Dtype::kU8;
    op.run_bytes = 1;
    op.dims = 1;
    op.count[0] = 2;
    op.file_stride[0] = apart;
    op.slab_stride[0] = 1;
    plan_.ops.push_back(op);
    target_[0] = {&plan_, {{{memory_, sizeof(memory_)}}}, nullptr};
  }
  absl::StatusOr<Schedule> Build() { return BuildSchedule(index_, target_); }

 private:
  CheckpointIndex index_;
  RankPlan plan_;
  std::byte memory_[512] = {};
  TransferTarget target_[1];
};

TEST(Schedule, DoesNotGrowWithTheHolesOfAFile) {
  constexpr uint64_t kApart = uint64_t{1} << 62;
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TwoBytes(kApart, kApart + 1).Build());
  EXPECT_LE(schedule.items.size(), (size_t{1} << 20) + 1);
  EXPECT_EQ(schedule.items.front().begin, 0u);
  EXPECT_EQ(schedule.items.back().end, kApart + 1);
}

TEST(Schedule, EndsAtTheLastByteThatANumberCanName) {
  constexpr uint64_t kApart = std::numeric_limits<uint64_t>::max() - 1;
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, TwoBytes(kApart, kApart + 1).Build());
  EXPECT_EQ(schedule.items.back().end, kApart + 1);
}

TEST(Schedule, RefusesCastsThatDisagreeWhereElementsStart) {
  World world(1, 2);
  world.AddBytes(0, 4096, 1);
  const uint64_t shape[3] = {1, 1, 500};
  const Box3 box = {{0, 0, 0}, {1, 1, 500}};
  world.AddTensor(0, 0, 0, Dtype::kF32, Dtype::kF16, shape, box);
  world.AddTensor(1, 0, 2, Dtype::kF32, Dtype::kF16, shape, box);
  world.Finish(kMiB);
  EXPECT_THAT(BuildSchedule(world.index, world.targets),
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(Schedule, CutsNoElementThatIsCast) {
  World world(1, 2);
  const uint64_t offset = world.AddBytes(0, 3 * kMiB, 1);
  AddSlice(world, 0, offset, 1, 3 * kMiB - 1);  // blocks that end within elements
  const uint64_t shape[3] = {1, 1, 3 * kMiB / 4};
  world.AddTensor(1, 0, offset, Dtype::kF32, Dtype::kF16, shape, {{0, 0, 0}, {1, 1, shape[2]}});
  world.Finish(kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  for (const WorkItem& item : schedule.items) EXPECT_EQ((item.end - offset) % 4, 0U);
}

TEST(Schedule, NamesEachPlaceOfTheFileOnce) {
  World world(2, 3);
  FillAtRandom(world, 99, 3 * kMiB);
  world.Finish(kMiB);
  ASSERT_OK_AND_ASSIGN(const Schedule schedule, BuildSchedule(world.index, world.targets));
  for (size_t i = 1; i < schedule.items.size(); ++i) {
    const WorkItem& a = schedule.items[i - 1];
    const WorkItem& b = schedule.items[i];
    EXPECT_TRUE(a.file < b.file || (a.file == b.file && a.end <= b.begin)) << i;
  }
}

}  // namespace
}  // namespace ckptd
