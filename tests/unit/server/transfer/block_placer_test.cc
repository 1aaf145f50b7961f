// Copies that a device does. The device only records its calls.
#include "server/transfer/block_placer.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/status.h"
#include "server/transfer/schedule.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

struct Notes {
  bool takes_blocks = true;
  bool failed = false;
  std::vector<std::byte> block;
  uint64_t begin = 0;
  std::vector<BlockCopy> copies;
};

class NotingLane final : public StagingLane {
 public:
  explicit NotingLane(Notes& notes) : notes_(notes) {}
  std::span<std::byte> Stage(std::span<const StagedPlace>, uint64_t, uint64_t bytes) override {
    room_.resize(bytes);
    return room_;
  }
  bool CanCopyFromBlocks(const StagedMemory&) const override { return notes_.takes_blocks; }
  std::span<std::byte> StageBlock(uint64_t begin, size_t bytes) override {
    if (notes_.failed) return {};
    notes_.begin = begin;
    notes_.block.assign(bytes, std::byte{0});
    return notes_.block;
  }
  void CopyFromBlock(StagedMemory&, const BlockCopy& copy) override {
    notes_.copies.push_back(copy);
  }
  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  Notes& notes_;
  std::vector<std::byte> room_;
};

class NotingMemory final : public StagedMemory {
 public:
  NotingMemory(Notes& notes, uint64_t bytes) : notes_(notes), bytes_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override {
    return std::make_unique<NotingLane>(notes_);
  }
  unsigned Lanes() const override { return 2; }
  absl::Status Read(uint64_t, std::span<std::byte>) override { return absl::OkStatus(); }

 private:
  Notes& notes_;
  const uint64_t bytes_;
};

// One tensor of 512 rows. Rank 0 takes `columns` of its `row` elements.
class BlockPlacerTest : public ::testing::Test {
 protected:
  void Make(Dtype from, Dtype to, uint64_t row, uint64_t columns) {
    constexpr uint64_t kRows = 512;
    world_ = std::make_unique<World>(1, 1);
    bytes_ = kRows * row * (from == Dtype::kU8 ? 1 : from == Dtype::kF32 ? 4 : 2);
    world_->big_endian = big_endian_;
    const uint64_t offset = world_->AddBytes(0, bytes_, 1);
    world_->AddTensor(0, 0, offset, from, to, {1, kRows, row}, {{}, {1, kRows, columns}});
    world_->Finish(uint64_t{64} << 20);
    RankPlan& plan = world_->plans[0];
    targets_ = {world_->targets[0]};
    targets_[0].slab.segments.clear();
    targets_[0].slab.staged = std::make_shared<NotingMemory>(notes_, plan.slab_bytes);
    schedule_ = BuildSchedule(world_->index, targets_).value();
    copies_ = std::make_unique<ItemCopies>(schedule_, targets_, kReadThroughGap);
    slabs_ = {SlabMap(targets_[0].slab)};
    writer_ = std::make_unique<SlabWriter>(SlabWriter::Open(slabs_).value());
    placer_ = std::make_unique<BlockPlacer>(*copies_, targets_, *writer_);
    ASSERT_OK(copies_->Begin(schedule_.items[0]));
    placer_->Begin();
  }
  bool Place(uint64_t begin, size_t bytes) {
    return placer_->Place(begin, std::span(world_->Content(0)).subspan(begin, bytes));
  }

  Notes notes_;
  bool big_endian_ = false;
  uint64_t bytes_ = 0;
  std::unique_ptr<World> world_;
  std::vector<TransferTarget> targets_;
  Schedule schedule_;
  std::unique_ptr<ItemCopies> copies_;
  std::vector<SlabMap> slabs_;
  std::unique_ptr<SlabWriter> writer_;
  std::unique_ptr<BlockPlacer> placer_;
};

TEST_F(BlockPlacerTest, LeavesShortRunsToTheDevice) {
  Make(Dtype::kU8, Dtype::kU8, 512, 300);
  ASSERT_TRUE(Place(4096, 64 << 10));
  EXPECT_EQ(notes_.begin, 4096);
  EXPECT_TRUE(std::equal(notes_.block.begin(), notes_.block.end(),
                         world_->Content(0).begin() + 4096));
  ASSERT_EQ(notes_.copies.size(), 1);
  const BlockCopy& copy = notes_.copies[0];
  EXPECT_EQ(copy.run_bytes, 300);
  EXPECT_EQ(copy.source_stride[0], 512);
  EXPECT_EQ(copy.target_stride[0], 300);
  EXPECT_EQ(copy.target, world_->plans[0].tensors[0].offset);
  EXPECT_EQ(copy.room, world_->plans[0].tensors[0].bytes);
}

TEST_F(BlockPlacerTest, LeavesCastsThatDoNotNarrow) {
  Make(Dtype::kBF16, Dtype::kF32, 512, 512);
  EXPECT_TRUE(Place(0, 64 << 10));
  Make(Dtype::kF16, Dtype::kBF16, 512, 512);
  EXPECT_TRUE(Place(0, 64 << 10));
}

TEST_F(BlockPlacerTest, CastsHereWhatBecomesLess) {
  Make(Dtype::kF32, Dtype::kBF16, 512, 512);
  EXPECT_FALSE(placer_->HandlesCopy(0));
  EXPECT_FALSE(Place(0, 64 << 10));
}

TEST_F(BlockPlacerTest, TurnsNumbersRoundHere) {
  big_endian_ = true;
  Make(Dtype::kF32, Dtype::kF32, 512, 300);
  EXPECT_FALSE(placer_->HandlesCopy(0)) << "short runs";
  Make(Dtype::kBF16, Dtype::kF32, 512, 512);
  EXPECT_FALSE(placer_->HandlesCopy(0)) << "a cast that widens";
  Make(Dtype::kU8, Dtype::kU8, 512, 300);
  EXPECT_TRUE(placer_->HandlesCopy(0)) << "single bytes have no order";
}

TEST_F(BlockPlacerTest, CopiesLongRunsHere) {
  Make(Dtype::kU8, Dtype::kU8, 512, 512);
  EXPECT_FALSE(placer_->HandlesCopy(0)) << "all of it is one run";
  Make(Dtype::kU8, Dtype::kU8, 8192, 5000);
  EXPECT_FALSE(placer_->HandlesCopy(0));
}

TEST_F(BlockPlacerTest, PassesNoBlockOnThatIsMostlyNotNeeded) {
  Make(Dtype::kU8, Dtype::kU8, 512, 200);
  EXPECT_TRUE(placer_->HandlesCopy(0));
  EXPECT_FALSE(Place(0, 64 << 10));
  EXPECT_TRUE(notes_.block.empty());
}

TEST_F(BlockPlacerTest, PassesNoSmallBlockOn) {
  Make(Dtype::kU8, Dtype::kU8, 512, 300);
  EXPECT_FALSE(Place(0, BlockPlacer::kMinBlockBytes - 1));
  EXPECT_TRUE(Place(0, BlockPlacer::kMinBlockBytes));
}

TEST_F(BlockPlacerTest, LeavesNothingToADeviceWithoutKernels) {
  notes_.takes_blocks = false;
  Make(Dtype::kU8, Dtype::kU8, 512, 300);
  EXPECT_FALSE(placer_->HandlesCopy(0));
}

TEST_F(BlockPlacerTest, LeavesNothingToADeviceThatHasFailed) {
  notes_.failed = true;
  Make(Dtype::kU8, Dtype::kU8, 512, 300);
  EXPECT_FALSE(Place(0, 64 << 10));
  EXPECT_TRUE(notes_.copies.empty());
}

}  // namespace
}  // namespace ckptd
