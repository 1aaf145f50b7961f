// Copies by GPUs out of blocks, on the fake driver with late streams.
#include "server/memory/cuda/cuda_lane.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "common/base/reasons.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/testing/cuda.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

class CudaLaneTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    UseTestCuda("gpus = 2\nlazy = 1\ntwins = " CKPTD_TWINS "\n");
  }
  void SetUp() override {
    CudaMemoryOptions options = {.budget_bytes = 64 << 20, .staging_bytes = 8 << 20};
    options.kernels = TestKernels();
    for (size_t gpu = 0; gpu < 2; ++gpu) {
      ASSERT_OK_AND_ASSIGN(memory_[gpu], CudaMemory::Create(TestGpu(gpu), options));
      ASSERT_OK_AND_ASSIGN(slab_[gpu], memory_[gpu]->Allocate(kBytes, AttachMode::kShared));
    }
    ASSERT_OK_AND_ASSIGN(lane_, slab_[0]->view().staged->OpenLane());
  }
  StagedMemory& staged(size_t gpu) { return *slab_[gpu]->view().staged; }

  static std::byte ByteAt(uint64_t position) {
    return static_cast<std::byte>(position * 31 + position / 251);
  }
  void StageBytes(uint64_t begin, size_t bytes) {
    const std::span<std::byte> room = lane_->StageBlock(begin, bytes);
    ASSERT_EQ(room.size(), bytes);
    for (size_t i = 0; i < bytes; ++i) room[i] = ByteAt(begin + i);
  }
  // `rows` runs of `run` bytes from `begin` on, with gaps of the same length, to `target`.
  static BlockCopy Rows(uint64_t begin, uint64_t run, uint64_t rows, uint64_t target) {
    BlockCopy copy;
    copy.from = copy.to = Dtype::kU8;
    copy.begin = begin;
    copy.run_bytes = run;
    copy.dims = 1;
    copy.count[0] = rows;
    copy.source_stride[0] = 2 * run;
    copy.target_stride[0] = run;
    copy.target = target;
    copy.room = rows * run;
    return copy;
  }
  void ExpectRows(size_t gpu, const BlockCopy& copy) {
    const auto got = ReadBytes(slab_[gpu]->view(), copy.target, copy.room);
    for (uint64_t i = 0; i < copy.room; ++i) {
      const uint64_t row = i / copy.run_bytes;
      ASSERT_EQ(got[i], ByteAt(copy.begin + row * copy.source_stride[0] + i % copy.run_bytes))
          << "byte " << i << " of GPU " << gpu;
    }
  }

  static constexpr uint64_t kBytes = 16 << 20;
  std::unique_ptr<CudaMemory> memory_[2];
  std::unique_ptr<Slab> slab_[2];
  std::unique_ptr<StagingLane> lane_;
};

TEST_F(CudaLaneTest, GivesEachGpuItsRowsOfOneBlock) {
  ASSERT_TRUE(lane_->CanCopyFromBlocks(staged(0)));
  StageBytes(1003, 100'000);
  const BlockCopy even = Rows(1003, 50, 1000, 4096);
  const BlockCopy odd = Rows(1053, 50, 999, 8);
  lane_->CopyFromBlock(staged(0), even);
  lane_->CopyFromBlock(staged(1), odd);
  ASSERT_OK(lane_->Finish());
  ExpectRows(0, even);
  ExpectRows(1, odd);
}

TEST_F(CudaLaneTest, TakesACopyThatSeveralBlocksHold) {
  const BlockCopy copy = Rows(0, 64, 50'000, 0);
  for (uint64_t begin = 0; begin < copy.room * 2; begin += 200'000) {
    StageBytes(begin, 200'000);
    lane_->CopyFromBlock(staged(0), copy);
  }
  ASSERT_OK(lane_->Finish());
  ExpectRows(0, copy);
}

TEST_F(CudaLaneTest, MixesBlocksAndBytesInASlot) {
  const BlockCopy copy = Rows(0, 64, 1000, 4 << 20);
  std::vector<std::byte> written(6'000'000);
  for (size_t i = 0; i < written.size(); ++i) written[i] = ByteAt(i * 3);
  uint64_t done = 0;
  for (int round = 0; round < 12; ++round) {
    for (uint64_t until = done + 250'001; done < until;) {
      const StagedPlace place = {&staged(1), 0};
      const auto room = lane_->Stage({&place, 1}, done, until - done);
      std::memcpy(room.data(), written.data() + done, room.size());
      done += room.size();
    }
    StageBytes(0, 128'000);
    lane_->CopyFromBlock(staged(0), copy);
  }
  ASSERT_OK(lane_->Finish());
  ExpectRows(0, copy);
  const auto got = ReadBytes(slab_[1]->view(), 0, done);
  EXPECT_EQ(std::memcmp(got.data(), written.data(), done), 0);
}

TEST_F(CudaLaneTest, GivesSeveralGpusWhatIsWrittenOnce) {
  constexpr uint64_t kShared = 5'000'001, kOwn = 70'001, kLast = 5'000, kHole = 7;
  const std::vector<StagedPlace> both = {{&staged(0), 4096}, {&staged(1), 8}};
  const std::vector<StagedPlace> own = {{&staged(0), 8 << 20}};
  // After the shared places: one place alone, and both with a gap.
  const std::vector<StagedPlace> behind = {{&staged(0), 4096 + kShared}};
  const std::vector<StagedPlace> later = {{&staged(0), (9 << 20) + kHole}, {&staged(1), 9 << 20}};
  const std::vector<StagedPlace> latest = {{&staged(0), (9 << 20) + 2 * kHole + kLast},
                                           {&staged(1), (9 << 20) + kHole + kLast}};
  const auto write = [&](std::span<const StagedPlace> places, uint64_t from, uint64_t until,
                         uint64_t seed) {
    while (from < until) {
      const auto room = lane_->Stage(places, from, until - from);
      for (std::byte& byte : room) byte = ByteAt(seed + from++);
    }
  };
  constexpr uint64_t kTurns = 7;
  for (uint64_t turn = 0; turn < kTurns; ++turn) {
    write(own, kOwn * turn / kTurns, kOwn * (turn + 1) / kTurns, 2);
    write(both, kShared * turn / kTurns, kShared * (turn + 1) / kTurns, 1);
  }
  write(behind, 0, kLast, 3);
  write(later, 0, kLast, 4);
  write(latest, 0, kLast, 5);
  ASSERT_OK(lane_->Finish());
  const auto expect = [&](size_t gpu, uint64_t offset, uint64_t bytes, uint64_t seed) {
    const auto got = ReadBytes(slab_[gpu]->view(), offset, bytes);
    for (uint64_t i = 0; i < bytes; ++i) {
      ASSERT_EQ(got[i], ByteAt(seed + i)) << "byte " << i << " of GPU " << gpu;
    }
  };
  expect(0, 4096, kShared, 1);
  expect(1, 8, kShared, 1);
  expect(0, 8 << 20, kOwn, 2);
  expect(0, 4096 + kShared, kLast, 3);
  for (size_t gpu = 0; gpu < 2; ++gpu) {
    expect(gpu, later[gpu].offset, kLast, 4);
    expect(gpu, latest[gpu].offset, kLast, 5);
    EXPECT_EQ(ReadBytes(slab_[gpu]->view(), later[gpu].offset + kLast, kHole),
              std::vector<std::byte>(kHole));
  }
  const std::vector<std::byte> zeros(1 << 20);
  EXPECT_EQ(ReadBytes(slab_[1]->view(), 8 + kShared, zeros.size()), zeros);
}

TEST_F(CudaLaneTest, LaunchesWhatNoTableHasRoomFor) {
  const size_t copies = SlotTasks::kTableRoom / kernels::TableBytes(1) + 100;
  // After the block only the room for tables is left.
  for (int filler = 0; filler < 3; ++filler) StageBytes(0, 1 << 20);
  StageBytes(0, (1 << 20) - SlotTasks::kTableRoom - 64);
  std::vector<BlockCopy> rows;
  for (size_t i = 0; i < copies; ++i) {
    rows.push_back(Rows(i * 512, 16, 16, i * 256));
    lane_->CopyFromBlock(staged(0), rows.back());
  }
  ASSERT_OK(lane_->Finish());
  for (const BlockCopy& copy : rows) ExpectRows(0, copy);
}

TEST_F(CudaLaneTest, RefusesACopyThatLeavesItsTensor) {
  StageBytes(0, 100'000);
  BlockCopy copy = Rows(0, 64, 100, 0);
  copy.room -= 1;
  lane_->CopyFromBlock(staged(0), copy);
  EXPECT_TRUE(lane_->StageBlock(0, 1000).empty()) << "it goes on after an error";
  EXPECT_THAT(lane_->Finish(), FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST_F(CudaLaneTest, TakesNoBlocksWithoutKernels) {
  ASSERT_OK_AND_ASSIGN(const auto memory,
                       CudaMemory::Create(TestGpu(), {.budget_bytes = 64 << 20}));
  ASSERT_OK_AND_ASSIGN(const auto slab, memory->Allocate(kBytes, AttachMode::kShared));
  EXPECT_FALSE(lane_->CanCopyFromBlocks(*slab->view().staged));
  EXPECT_NE(memory->tier().find("no copy kernels"), std::string::npos);
}

}  // namespace
}  // namespace ckptd
