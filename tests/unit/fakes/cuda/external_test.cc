// Work in a stream that others do: what the fake NCCL stands on.
#include "tests/fakes/cuda/external.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

const char* const kModes[] = {"lazy = 0", "lazy = 1", "lazy_ms = 0"};

struct Started {
  std::atomic<int> count{0};
  std::atomic<void*> ticket{nullptr};
};

void Start(void* data, void* ticket) {
  auto* started = static_cast<Started*>(data);
  started->ticket = ticket;
  ++started->count;
}

struct Fixture {
  Fixture() {
    UseDevice();
    EXPECT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&memory, 8), CUDA_SUCCESS);
    EXPECT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  }
  unsigned char Peek() const { return *reinterpret_cast<const volatile unsigned char*>(memory); }
  // Enough questions for any mode, none of which may wait.
  CUresult Ask(CUstream which, int times = 100) const {
    CUresult result = CUDA_ERROR_NOT_READY;
    for (int i = 0; i < times && result == CUDA_ERROR_NOT_READY; ++i) result = cuStreamQuery(which);
    return result;
  }
  void AwaitStart(int count = 1) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (started.count < count && std::chrono::steady_clock::now() < end) {
      static_cast<void>(cuStreamQuery(stream));
    }
    EXPECT_EQ(started.count, count);
  }

  CUstream stream = nullptr;
  CUstream other = nullptr;
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  Started started;
};

TEST(FakeExternal, WhatIsBehindItWaitsAndNobodyWhoAsksDoes) {
  for (const char* mode : kModes) {
    World(mode).Run([] {
      Fixture f;
      const cuFakeRange range = {f.memory, 8, true};
      EXPECT_EQ(cuFakeEnqueue(f.stream, &range, 1, &Start, &f.started), CUDA_SUCCESS);
      EXPECT_EQ(cuMemsetD8Async(f.memory, 4, 8, f.stream), CUDA_SUCCESS);
      f.AwaitStart();
      EXPECT_EQ(f.Ask(f.stream), CUDA_ERROR_NOT_READY);
      EXPECT_EQ(f.Peek(), 0);
      cuFakeFinish(f.started.ticket, CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(f.stream), CUDA_SUCCESS);
      EXPECT_EQ(f.Peek(), 4);
    });
  }
}

TEST(FakeExternal, StreamsThatWaitForItByAnEventAreNotWaitedForEither) {
  for (const char* mode : kModes) {
    World(mode).Run([] {
      Fixture f;
      EXPECT_EQ(cuFakeEnqueue(f.stream, nullptr, 0, &Start, &f.started), CUDA_SUCCESS);
      EXPECT_EQ(cuEventRecord(f.event, f.stream), CUDA_SUCCESS);
      EXPECT_EQ(cuStreamWaitEvent(f.other, f.event, 0), CUDA_SUCCESS);
      EXPECT_EQ(cuMemsetD8Async(f.memory, 4, 8, f.other), CUDA_SUCCESS);
      f.AwaitStart();
      EXPECT_EQ(f.Ask(f.other), CUDA_ERROR_NOT_READY);
      EXPECT_EQ(f.Peek(), 0);
      cuFakeFinish(f.started.ticket, CUDA_SUCCESS);
      EXPECT_EQ(cuStreamSynchronize(f.other), CUDA_SUCCESS);
      EXPECT_EQ(f.Peek(), 4);
    });
  }
}

TEST(FakeExternal, ItBeginsWhenWhatIsBeforeItHasEnded) {
  World("lazy = 1").Run([] {
    Fixture f;
    EXPECT_EQ(cuMemsetD8Async(f.memory, 4, 8, f.stream), CUDA_SUCCESS);
    EXPECT_EQ(cuFakeEnqueue(f.stream, nullptr, 0, &Start, &f.started), CUDA_SUCCESS);
    EXPECT_EQ(f.started.count, 0);
    EXPECT_EQ(cuStreamQuery(f.stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(f.Peek(), 4);
    EXPECT_EQ(f.started.count, 0) << "one piece a question";
    EXPECT_EQ(cuStreamQuery(f.stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(f.started.count, 1);
    cuFakeFinish(f.started.ticket, CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(f.stream), CUDA_SUCCESS);
  });
}

TEST(FakeExternal, WhoeverWaitsGetsItsError) {
  World("lazy_ms = 0").Run([] {
    Fixture f;
    EXPECT_EQ(cuFakeEnqueue(f.stream, nullptr, 0, &Start, &f.started), CUDA_SUCCESS);
    f.AwaitStart();
    std::thread finisher([&] { cuFakeFinish(f.started.ticket, CUDA_ERROR_LAUNCH_FAILED); });
    EXPECT_EQ(cuStreamSynchronize(f.stream), CUDA_ERROR_LAUNCH_FAILED);
    finisher.join();
  });
}

TEST(FakeExternal, AWrongRangeBreaksTheContextAndItIsToldThatItNeverBegins) {
  World().Run([] {
    Fixture f;
    const cuFakeRange beyond = {f.memory, 16, false};
    EXPECT_EQ(cuFakeEnqueue(f.stream, &beyond, 1, &Start, &f.started), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(f.started.count, 1);
    EXPECT_EQ(f.started.ticket, nullptr);
  });
}

TEST(FakeExternal, ItsMemoryStaysUntilItHasEnded) {
  const World world;
  world.Run([] {
    Fixture f;
    const CUdeviceptr mapped = MapMemory(MakeMemory(kUnit), kUnit);
    const cuFakeRange range = {mapped, 8, false};
    EXPECT_EQ(cuFakeEnqueue(f.stream, &range, 1, &Start, &f.started), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(mapped, kUnit), CUDA_ERROR_INVALID_VALUE);
    cuFakeFinish(f.started.ticket, CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(mapped, kUnit), CUDA_SUCCESS);
  });
  EXPECT_EQ(world.Traced("violation: memory is unmapped while queued work uses it"), 1);
}

}  // namespace
}  // namespace ckptd::fake_cuda
