// Memory, code and contexts in use by work that does not end in time, on the fake driver.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "common/base/reasons.h"
#include "common/cuda/allocation.h"
#include "common/cuda/stream.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/testing/cuda.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/stuck_work.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 32 << 20;  // half of the GPU

class UnfinishedWorkTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    UseTestCuda("gpus = 2\nbytes = 0x4000000\ntrace = trace\ntwins = " CKPTD_TWINS "\n");
  }
  // Queues work that does not end, and gives it up.
  void GetStuck(CUdeviceptr address, uint64_t bytes) { GetStuck(device_, address, bytes); }
  void GetStuck(const std::shared_ptr<CudaDevice>& device, CUdeviceptr address, uint64_t bytes) {
    ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Make(device));
    work_.emplace(*device, stream.get(), address, bytes);
    EXPECT_THAT(stream.Wait(std::chrono::milliseconds(1)),
                FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  }
  // Waits for the condition, without any call to the driver.
  static bool Comes(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return condition();
  }
  void TearDown() override { EXPECT_EQ(CudaTraced("\"violation\""), 0); }

  std::shared_ptr<CudaDevice> device_ = TestGpu();
  std::optional<StuckWork> work_;
};

class MemoryUnderWork : public UnfinishedWorkTest, public ::testing::WithParamInterface<bool> {};

TEST_P(MemoryUnderWork, IsFreedWhenTheWorkHasEnded) {
  const uint64_t before = device_->FreeBytes().value();
  {
    ASSERT_OK_AND_ASSIGN(const CudaAllocation memory,
                         GetParam() ? CudaAllocation::CreatePlain(device_, kBytes)
                                    : CudaAllocation::Create(device_, kBytes));
    GetStuck(memory.address(), kBytes);
  }
  EXPECT_TRUE(device_->Busy());
  device_->FreeDeferred();
  EXPECT_EQ(device_->FreeBytes().value(), before - kBytes);
  work_->End();
  EXPECT_TRUE(Comes([&] { return device_->FreeBytes().value() == before; }));
  EXPECT_FALSE(device_->Busy());
  EXPECT_EQ(CudaTraced("\"cuStreamDestroy\""), 1);
}

INSTANTIATE_TEST_SUITE_P(Kinds, MemoryUnderWork, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "Plain" : "WithDescriptor"; });

TEST_F(UnfinishedWorkTest, AContextStaysForItAndGoesAfterIt) {
  ASSERT_OK_AND_ASSIGN(std::optional<CudaAllocation> memory,
                       CudaAllocation::Create(device_, kBytes));
  GetStuck(memory->address(), kBytes);
  memory.reset();
  device_.reset();
  EXPECT_EQ(CudaTraced("\"cuDevicePrimaryCtxRelease\""), 0);
  device_ = TestGpu();
  EXPECT_TRUE(device_->Busy());
  device_.reset();
  EXPECT_EQ(CudaTraced("\"cuDevicePrimaryCtxRelease\""), 1) << "the other one keeps it";
  work_->End();
  EXPECT_TRUE(Comes([] { return CudaTraced("\"cuDevicePrimaryCtxRelease\"") == 2; }))
      << "by itself";
  EXPECT_EQ(CudaTraced("\"cuMemRelease\""), 1);
  work_.reset();
}

TEST_F(UnfinishedWorkTest, TheNextSlabHasTheRoomOfOneThatWasKept) {
  ASSERT_OK_AND_ASSIGN(const auto memory, CudaMemory::Create(device_, {.budget_bytes = 1 << 30,
                                                                       .staging_bytes = 8 << 20}));
  ASSERT_OK_AND_ASSIGN(auto slab, memory->Allocate(kBytes, AttachMode::kShared));
  GetStuck(slab->view().staged->address(), kBytes);
  slab.reset();
  EXPECT_THAT(memory->Allocate(kBytes + 1, AttachMode::kShared),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline))
      << "as if other checkpoints could make room";
  work_->End();
  EXPECT_OK(memory->Allocate(kBytes + 1, AttachMode::kShared));
}

TEST_F(UnfinishedWorkTest, KernelsStayLoadedUnderIt) {
  auto kernels = CudaKernels::Load(device_, TestKernels());
  ASSERT_OK(kernels);
  GetStuck(0, 0);
  kernels->reset();
  EXPECT_EQ(CudaTraced("\"cuModuleUnload\""), 0);
  work_->End();
  EXPECT_TRUE(Comes([] { return CudaTraced("\"cuModuleUnload\"") == 1; }));
}

TEST_F(UnfinishedWorkTest, PinnedMemoryIsNotFreedBesideItEither) {
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<StagingPool> pool, StagingPool::Create(device_, 8 << 20));
  GetStuck(0, 0);
  pool.reset();
  EXPECT_EQ(CudaTraced("\"cuMemFreeHost\""), 0) << "the driver would wait for the work";
  work_->End();
  EXPECT_TRUE(Comes([] { return CudaTraced("\"cuMemFreeHost\"") == 1; }));
}

TEST_F(UnfinishedWorkTest, PinnedMemoryThatAnotherGpuReadIsNotFreedBesideThatOnesWork) {
  const std::shared_ptr<CudaDevice> peer = TestGpu(1);
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<StagingPool> pool, StagingPool::Create(device_, 8 << 20));
  {
    ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Make(peer));
    ASSERT_OK_AND_ASSIGN(StagingPool::Slot* const slot, pool->Take(this));
    EXPECT_OK(pool->Record(*slot, peer, stream.get()));
    pool->Give(slot);
  }
  GetStuck(peer, 0, 0);
  pool.reset();
  EXPECT_EQ(CudaTraced("\"cuEventDestroy\""), 1);
  EXPECT_EQ(CudaTraced("\"cuMemFreeHost\""), 0);
  work_->End();
  EXPECT_TRUE(Comes([&] { return CudaTraced("\"cuMemFreeHost\"") == 1; }));
}

TEST_F(UnfinishedWorkTest, APeerIsNotStartedBesideIts) {
  const std::shared_ptr<CudaDevice> peer = TestGpu(1);
  ASSERT_OK_AND_ASSIGN(const auto engine, CudaEngine::Start(device_, {.staging_bytes = 8 << 20}));
  GetStuck(peer, 0, 0);
  EXPECT_THAT(engine->GpuOf(peer->info().uuid),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  EXPECT_EQ(engine->GpuOf(device_->info().uuid)->device, device_) << "has nothing to end";
  work_->End();
  EXPECT_OK(engine->GpuOf(peer->info().uuid));
}

TEST_F(UnfinishedWorkTest, NothingIsStartedBesideIt) {
  ASSERT_OK_AND_ASSIGN(const auto memory, CudaMemory::Create(device_, {.budget_bytes = 1 << 30,
                                                                       .staging_bytes = 8 << 20,
                                                                       .keep_engine = false}));
  GetStuck(0, 0);
  EXPECT_THAT(memory->Allocate(1, AttachMode::kShared),
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  work_->End();
  EXPECT_OK(memory->Allocate(1, AttachMode::kShared));
}

TEST_F(UnfinishedWorkTest, WhatSomebodyElseMayUseAtAnyTimeIsKeptAsLong) {
  const uint64_t before = device_->FreeBytes().value();
  std::optional<CudaClaim> claim(device_);
  {
    ASSERT_OK_AND_ASSIGN(const CudaAllocation memory, CudaAllocation::Create(device_, kBytes));
    ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Make(device_));
  }
  EXPECT_TRUE(device_->Busy());
  device_->FreeDeferred();
  EXPECT_EQ(device_->FreeBytes().value(), before - kBytes);
  EXPECT_EQ(CudaTraced("\"cuStreamDestroy\""), 0);
  claim.reset();
  EXPECT_TRUE(Comes([&] { return CudaTraced("\"cuStreamDestroy\"") == 1; }));
  EXPECT_EQ(device_->FreeBytes().value(), before);
}

TEST_F(UnfinishedWorkTest, ItsContextGoesWithTheLastClaim) {
  std::optional<CudaClaim> claim(device_);
  device_.reset();
  EXPECT_EQ(CudaTraced("\"cuDevicePrimaryCtxRelease\""), 0);
  claim.reset();
  EXPECT_EQ(CudaTraced("\"cuDevicePrimaryCtxRelease\""), 1);
}

}  // namespace
}  // namespace ckptd
