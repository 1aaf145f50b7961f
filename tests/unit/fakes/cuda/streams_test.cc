// Order and time of queued work: what a missing synchronisation shows.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

const char kLazy[] = "lazy = 1";

CUdeviceptr Allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  return address;
}

CUstream NewStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
  CUstream stream = nullptr;
  EXPECT_EQ(cuStreamCreate(&stream, flags), CUDA_SUCCESS);
  return stream;
}

// A pinned byte.
unsigned char* Pinned(unsigned char value) {
  void* memory = nullptr;
  EXPECT_EQ(cuMemHostAlloc(&memory, 4096, 0), CUDA_SUCCESS);
  *static_cast<unsigned char*>(memory) = value;
  return static_cast<unsigned char*>(memory);
}

// What the memory holds now, without any waiting.
unsigned char Peek(CUdeviceptr address) {
  return *reinterpret_cast<const volatile unsigned char*>(address);
}

TEST(FakeStreams, EagerWorkIsDoneWhenTheCallReturns) {
  World().Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(8);
    EXPECT_EQ(cuMemcpyHtoDAsync(address, Pinned(5), 1, NewStream()), CUDA_SUCCESS);
    EXPECT_EQ(Peek(address), 5);
  });
}

TEST(FakeStreams, EveryThreadHasAModeOfRecordingOfItsOwn) {
  World().Run([] {
    UseDevice();
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    std::thread([] {
      CUstreamCaptureMode other = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
      EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&other), CUDA_SUCCESS);
      EXPECT_EQ(other, CU_STREAM_CAPTURE_MODE_GLOBAL);
    }).join();
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  });
}

TEST(FakeStreams, LazyWorkWaitsForWhoWaits) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(8);
    const CUstream stream = NewStream();
    EXPECT_EQ(cuMemcpyHtoDAsync(address, Pinned(5), 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(Peek(address), 0) << "a missing synchronisation shows";
    EXPECT_EQ(cuStreamSynchronize(NewStream()), CUDA_SUCCESS);
    EXPECT_EQ(Peek(address), 0) << "waiting for another stream is none";
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(Peek(address), 5);
  });
}

TEST(FakeStreams, PinnedMemoryIsReadLateAndPageableAtOnce) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(8);
    const CUstream stream = NewStream();
    unsigned char* pinned = Pinned(1);
    unsigned char pageable = 1;
    EXPECT_EQ(cuMemcpyHtoDAsync(address, pinned, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyHtoDAsync(address + 1, &pageable, 1, stream), CUDA_SUCCESS);
    *pinned = 2;
    pageable = 2;
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(Peek(address), 2);
    EXPECT_EQ(Peek(address + 1), 1);
  });
}

TEST(FakeStreams, ACopyToPageableMemoryReturnsWhenItIsDone) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(8);
    const CUstream stream = NewStream();
    unsigned char pageable = 0;
    unsigned char* pinned = Pinned(0);
    EXPECT_EQ(cuMemsetD8Async(address, 9, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoHAsync(&pageable, address, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(pageable, 9);
    EXPECT_EQ(cuMemcpyDtoHAsync(pinned, address, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(*pinned, 0);
  });
}

TEST(FakeStreams, CallsWithoutAsyncDoNotAllWait) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr a = Allocate(8);
    const CUdeviceptr b = Allocate(8);
    unsigned char byte = 0;
    EXPECT_EQ(cuMemsetD8(a, 4, 8), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoD(b, a, 8), CUDA_SUCCESS);
    EXPECT_EQ(Peek(b), 0) << "between device addresses nothing waits for the host";
    EXPECT_EQ(cuMemcpyDtoH(&byte, b, 1), CUDA_SUCCESS);
    EXPECT_EQ(byte, 4);
  });
}

TEST(FakeStreams, AnEventOrdersTwoStreams) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr a = Allocate(8);
    const CUdeviceptr b = Allocate(8);
    const CUstream first = NewStream();
    const CUstream second = NewStream();
    CUevent event = nullptr;
    ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(a, 6, 8, first), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(event, first), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(a, 7, 8, first), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamWaitEvent(second, event, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoDAsync(b, a, 8, second), CUDA_SUCCESS);
    EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT_EQ(Peek(b), 6) << "up to the event, and not beyond";
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Peek(a), 7);
  });
}

TEST(FakeStreams, TheLegacyStreamIsOrderedWithBlockingStreamsOnly) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr a = Allocate(8);
    EXPECT_EQ(cuMemsetD8Async(a, 1, 1, NewStream(CU_STREAM_DEFAULT)), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8Async(a + 1, 1, 1, NewStream(CU_STREAM_NON_BLOCKING)), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(a + 2, 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Peek(a), 1);
    EXPECT_EQ(Peek(a + 1), 0);
    EXPECT_EQ(Peek(a + 2), 1);
  });
}

TEST(FakeStreams, AskingSaysNotReadyAndMakesWorkGoOn) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr a = Allocate(8);
    const CUstream stream = NewStream();
    CUevent event = nullptr;
    ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS) << "never recorded";
    EXPECT_EQ(cuMemsetD8Async(a, 1, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
    EXPECT_EQ(Peek(a), 1);
  });
}

TEST(FakeStreams, AWorkerDoesLazyWorkLater) {
  World("lazy_ms = 1").Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(8);
    const CUstream stream = NewStream();
    static std::atomic<bool> done{false};
    const auto tell = [](void*) { done = true; };
    EXPECT_EQ(cuMemsetD8Async(address, 5, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchHostFunc(stream, tell, nullptr), CUDA_SUCCESS);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
    while (!done && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(Peek(address), 5) << "nobody waited for it";
    EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  });
}

TEST(FakeStreams, EventsMeasureTime) {
  World().Run([] {
    UseDevice();
    CUevent start = nullptr;
    CUevent end = nullptr;
    float milliseconds = -1;
    ASSERT_EQ(cuEventCreate(&start, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuEventCreate(&end, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventRecord(start, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuEventRecord(end, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
    EXPECT_GE(milliseconds, 0);
  });
}

TEST(FakeStreams, AHostFunctionRunsInOrderAndMayNotCallTheApi) {
  const World world(kLazy);
  world.Run([] {
    UseDevice();
    static std::atomic<int> answer{-1};
    const CUstream stream = NewStream();
    const auto function = [](void*) {
      int count = 0;
      answer = cuDeviceGetCount(&count);
    };
    EXPECT_EQ(cuLaunchHostFunc(stream, function, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(answer, -1);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(answer, static_cast<int>(CUDA_ERROR_NOT_PERMITTED));
  });
  EXPECT_EQ(world.Traced("violation: a host function"), 1);
}

TEST(FakeStreams, UnmappingUnderQueuedWorkIsAViolation) {
  const World world(kLazy);
  world.Run([] {
    UseDevice();
    const CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit);
    const CUstream stream = NewStream();
    EXPECT_EQ(cuMemsetD8Async(address, 5, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(address, kUnit), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(address, kUnit), CUDA_SUCCESS);
  });
  EXPECT_EQ(world.Traced("violation: memory is unmapped"), 1);
}

TEST(FakeStreams, FreeingPinnedMemoryUnderQueuedWorkIsAViolation) {
  const World world(kLazy);
  world.Run([] {
    UseDevice();
    const CUstream stream = NewStream();
    unsigned char* pinned = Pinned(1);
    EXPECT_EQ(cuMemcpyHtoDAsync(Allocate(8), pinned, 1, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  });
  EXPECT_EQ(world.Traced("violation: pinned host memory"), 1);
}

TEST(FakeStreams, CuMemFreeWaitsForQueuedWork) {
  const World world(kLazy);
  world.Run([] {
    UseDevice();
    const CUdeviceptr a = Allocate(8);
    const CUdeviceptr b = Allocate(8);
    const CUstream stream = NewStream();
    EXPECT_EQ(cuMemsetD8Async(a, 5, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoDAsync(b, a, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(a), CUDA_SUCCESS);
    EXPECT_EQ(Peek(b), 5);
  });
  EXPECT_EQ(world.Traced("violation"), 0);
}

TEST(FakeStreams, AStreamThatIsDestroyedFinishesItsWork) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(8);
    const CUstream stream = NewStream();
    EXPECT_EQ(cuMemsetD8Async(address, 5, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Peek(address), 5);
  });
}

TEST(FakeStreams, AFaultOfQueuedWorkShowsWhereItIsWaitedFor) {
  World(kLazy).Run([] {
    UseDevice();
    const CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit, CU_MEM_ACCESS_FLAGS_PROT_READ);
    const CUstream stream = NewStream();
    EXPECT_EQ(cuMemsetD8Async(address, 5, 8, stream), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST(FakeStreams, ASlowLinkTakesItsTime) {
  World("link_bytes_per_second = 10000000").Run([] {
    UseDevice();
    const std::vector<char> bytes(500'000);
    const CUdeviceptr address = Allocate(bytes.size());
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(cuMemcpyHtoD(address, bytes.data(), bytes.size()), CUDA_SUCCESS);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  });
}

TEST(FakeStreams, ManyThreadsCanUseManyStreams) {
  World("lazy_ms = 0").Run([] {
    UseDevice();
    CUcontext context = nullptr;
    ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    std::vector<std::thread> threads;
    for (unsigned char t = 1; t <= 4; ++t) {
      threads.emplace_back([context, t] {
        EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        const CUdeviceptr address = Allocate(64);
        const CUstream stream = NewStream();
        for (int round = 0; round < 200; ++round) {
          EXPECT_EQ(cuMemsetD8Async(address, t, 64, stream), CUDA_SUCCESS);
        }
        EXPECT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
        EXPECT_EQ(Peek(address + 63), t);
        EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

}  // namespace
}  // namespace ckptd::fake_cuda
