// Slots of pinned memory, on the fake driver.
#include "server/memory/cuda/staging_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/testing/cuda.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

class StagingPoolTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { UseTestCuda("gpus = 1\n"); }
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pool_, StagingPool::Create(TestGpu(), 4 * StagingPool::kSlotBytes));
  }
  StagingPool::Slot* Take(const int& user) {
    auto slot = pool_->Take(&user);
    EXPECT_OK(slot);
    return slot.value_or(nullptr);
  }

  std::shared_ptr<StagingPool> pool_;
  const int one_ = 1;
  const int two_ = 2;
};

TEST_F(StagingPoolTest, AUserGetsTheSlotItHadBeforeWhateverWasGivenBackLast) {
  StagingPool::Slot* const first = Take(one_);
  StagingPool::Slot* const second = Take(two_);
  ASSERT_NE(first, second);
  pool_->Give(first);
  pool_->Give(second);
  EXPECT_EQ(Take(one_), first);
  EXPECT_EQ(Take(two_), second);
}

TEST_F(StagingPoolTest, AUserWhoseSlotIsTakenGetsAnother) {
  StagingPool::Slot* const first = Take(one_);
  for (int i = 0; i < 2; ++i) EXPECT_NE(Take(one_), first);
  StagingPool::Slot* const last = Take(two_);
  pool_->Give(first);
  pool_->Give(last);
  EXPECT_EQ(Take(two_), last);
  EXPECT_EQ(Take(two_), first) << "one that was another's is better than none";
}

TEST_F(StagingPoolTest, WhoeverKeepsAllSlotsIsBlamedAndNotTheGpu) {
  ASSERT_OK_AND_ASSIGN(pool_, StagingPool::Create(TestGpu(), 2 * StagingPool::kSlotBytes,
                                                  std::chrono::milliseconds(50)));
  Take(one_);
  StagingPool::Slot* const second = Take(two_);
  const absl::Status status = pool_->Take(&one_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(status), reason::kDeadline);
  EXPECT_THAT(MessageOf(status), ::testing::HasSubstr("held all 2 slots"));
  pool_->Give(second);
  EXPECT_EQ(Take(one_), second);
}

TEST_F(StagingPoolTest, ALaneHasASlotToFillAndOneThatIsEmptied) {
  EXPECT_EQ(pool_->Lanes(), 2U);
  ASSERT_OK_AND_ASSIGN(const auto least, StagingPool::Create(TestGpu(), 1));
  EXPECT_EQ(least->Lanes(), 1U);
}

// The host has no memory to pin.
class NoPinnedMemoryTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { UseTestCuda("gpus = 1\nfault = cuMemHostAlloc error=2\n"); }
};

TEST_F(NoPinnedMemoryTest, IsSaidToLackOnTheHost) {
  const auto pool = StagingPool::Create(TestGpu(), 2 * StagingPool::kSlotBytes);
  EXPECT_THAT(pool, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(FactsOf(pool.status()).at("host_bytes"),
            std::to_string(2 * StagingPool::kSlotBytes));
}

// The driver has no event for the first copy, so the end of that copy cannot be seen.
class BrokenStagingTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    UseTestCuda("gpus = 1\nfault = cuEventRecord nth=1 error=2\ntrace = trace\n");
  }
};

TEST_F(BrokenStagingTest, IsMadeAnewForTheNextLane) {
  ASSERT_OK_AND_ASSIGN(const auto memory, CudaMemory::Create(TestGpu(), {.budget_bytes = 64 << 20,
                                                                         .staging_bytes = 8 << 20}));
  ASSERT_OK_AND_ASSIGN(const auto slab, memory->Allocate(1 << 20, AttachMode::kShared));
  const SlabView view = slab->view();
  {
    ASSERT_OK_AND_ASSIGN(const auto lane, view.staged->OpenLane());
    const StagedPlace place = {view.staged.get(), 0};
    std::fill_n(lane->Stage({&place, 1}, 0, 5).begin(), 5, std::byte{1});
    EXPECT_THAT(lane->Finish(), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
    // While the pool has only the broken slot, it returns that error.
    EXPECT_THAT(lane->Finish(), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  }
  const std::vector<std::byte> bytes(5, std::byte{7});
  WriteBytes(view, 0, bytes);
  EXPECT_EQ(ReadBytes(view, 0, 5), bytes);
  EXPECT_EQ(CudaTraced("\"cuMemHostAlloc\""), 2);
  EXPECT_EQ(CudaTraced("\"cuMemFreeHost\""), 1) << "the broken one";
}

// Copies run a while after they were queued, unless a thread waits for them.
class LateCopiesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    UseTestCuda("gpus = 1\nlazy_ms = 300\nfault = cuMemcpyHtoDAsync nth=2 error=2\n");
  }
};

TEST_F(LateCopiesTest, HaveEndedWhenALaneGoesThatFailedOtherwise) {
  const std::shared_ptr<CudaDevice> device = TestGpu();
  ASSERT_OK_AND_ASSIGN(const auto memory, CudaMemory::Create(device, {.budget_bytes = 64 << 20,
                                                                      .staging_bytes = 8 << 20}));
  constexpr uint64_t kBytes = 3 * StagingPool::kSlotBytes;
  ASSERT_OK_AND_ASSIGN(const auto slab, memory->Allocate(kBytes, AttachMode::kShared));
  const SlabView view = slab->view();
  {
    ASSERT_OK_AND_ASSIGN(const auto lane, view.staged->OpenLane());
    const StagedPlace place = {view.staged.get(), 0};
    // The second slot's copy is refused when a third one is needed.
    for (uint64_t done = 0; done < kBytes && lane->status().ok();) {
      done += lane->Stage({&place, 1}, done, kBytes - done).size();
    }
    EXPECT_THAT(lane->status(), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  }
  EXPECT_FALSE(device->Busy());
}

}  // namespace
}  // namespace ckptd
