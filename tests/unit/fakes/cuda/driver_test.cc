// Rules of all calls: initialisation, contexts, faults, versions.
#include <dlfcn.h>

#include <chrono>
#include <thread>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

TEST(FakeCuda, RefusesEverythingBeforeCuInit) {
  World().Run([] {
    int count = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = Shareable();
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    EXPECT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_ERROR_NOT_INITIALIZED);
  });
}

TEST(FakeCuda, NeedsAContextForMemoryOfContexts) {
  World().Run([] {
    CUdeviceptr address = 0;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&address, 100), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_NE(MakeMemory(kUnit), 0U) << "physical memory needs none";
  });
}

TEST(FakeCuda, AContextThatWasReleasedCannotBeUsed) {
  World().Run([] {
    UseDevice();
    CUdeviceptr address = 0;
    ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&address, 100), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST(FakeCuda, TheEndOfAContextFreesItsMemoryAndLeavesMapped) {
  World("bytes = 0x1000000").Run([] {
    UseDevice();
    CUdeviceptr block = 0;
    ASSERT_EQ(cuMemAlloc(&block, kUnit), CUDA_SUCCESS);
    const CUdeviceptr mapped = MapMemory(MakeMemory(kUnit), kUnit);
    ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    UseDevice();
    EXPECT_EQ(FreeBytes(), 0x1000000 - kUnit);
    EXPECT_EQ(cuMemsetD8(mapped, 1, 8), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(block, 1, 8), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(FakeCuda, AnotherThreadHasNoContextUntilItTakesOne) {
  World().Run([] {
    UseDevice();
    std::thread([] {
      CUdeviceptr address = 0;
      EXPECT_EQ(cuMemAlloc(&address, 100), CUDA_ERROR_INVALID_CONTEXT);
    }).join();
  });
}

TEST(FakeCuda, AForkedChildIsNotInitialised) {
  World().Run([] {
    UseDevice();
    const pid_t child = ::fork();
    if (child == 0) {
      int count = 0;
      ::_exit(cuDeviceGetCount(&count) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuInit(0) == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

TEST(FakeCuda, GpusAreAsConfigured) {
  const char* const config =
      "gpus = 2\nname.1 = Big\nbytes.1 = 0x80000000\n"
      "uuid.1 = GPU-01020304-0506-0708-090a-0b0c0d0e0f10\nattribute.102 = 0";
  World(config).Run([] {
    char name[20];
    std::size_t bytes = 0;
    CUuuid uuid;
    int vmm = 1;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetName(name, sizeof name, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceTotalMem(&bytes, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetUuid(&uuid, 1), CUDA_SUCCESS);
    EXPECT_EQ(
        cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1),
        CUDA_SUCCESS);
    EXPECT_STREQ(name, "Big");
    EXPECT_EQ(bytes, 0x80000000U);
    EXPECT_EQ(uuid.bytes[15], 16);
    EXPECT_EQ(vmm, 0);
    EXPECT_EQ(cuDeviceGetUuid(&uuid, 2), CUDA_ERROR_INVALID_DEVICE);
  });
}

TEST(FakeCuda, VisibleDevicesSelectAndOrderByNumberOrUuid) {
  World("gpus = 3\nuuid.2 = GPU-77777777-0506-0708-090a-0b0c0d0e0f10").Run([] {
    ::setenv("CUDA_VISIBLE_DEVICES", "GPU-7777,0,9,1", 1);
    int count = 0;
    char name[20];
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_EQ(count, 2) << "what follows an unknown one is not visible";
    EXPECT_EQ(cuDeviceGetName(name, sizeof name, 0), CUDA_SUCCESS);
    EXPECT_STREQ(name, "Fake GPU 2");
  });
}

TEST(FakeCuda, WithoutVisibleDevicesThereIsNone) {
  World().Run([] {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
  });
}

TEST(FakeCuda, AConfigurationWithMistakesIsRefusedByCuInit) {
  World("gpu = 2").Run([] { EXPECT_EQ(cuInit(0), CUDA_ERROR_SYSTEM_NOT_READY); });
}

TEST(FakeCuda, AFaultHitsTheCallItNamesInProcessesOfItsRole) {
  const World world("fault = cuMemCreate nth=2 error=2 role=trainer");
  const auto second_call = [] {
    const CUmemAllocationProp prop = Shareable();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    MakeMemory(kUnit);
    const CUresult result = cuMemCreate(&handle, kUnit, &prop, 0);
    MakeMemory(kUnit);
    return result;
  };
  world.Run([&] { EXPECT_EQ(second_call(), CUDA_ERROR_OUT_OF_MEMORY); }, "trainer");
  world.Run([&] { EXPECT_EQ(second_call(), CUDA_SUCCESS); }, "daemon");
}

TEST(FakeCuda, AStickyFaultIsAnsweredByEveryLaterCall) {
  const World world("fault = cuMemCreate sticky=700");
  world.Run([] {
    UseDevice();
    const CUmemAllocationProp prop = Shareable();
    CUmemGenericAllocationHandle handle = 0;
    int value = 0;
    const char* text = nullptr;
    EXPECT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuDeviceGetCount(&value), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuDriverGetVersion(&value), CUDA_SUCCESS);
    EXPECT_EQ(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text), CUDA_SUCCESS);
    EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  });
  EXPECT_EQ(world.Traced("\"after_sticky\":true"), 1);
}

TEST(FakeCuda, AFaultCanAnswerAnotherUuid) {
  World("fault = cuDeviceGetUuid uuid=GPU-01020304-0506-0708-090a-0b0c0d0e0f10").Run([] {
    CUuuid uuid;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDeviceGetUuid(&uuid, 0), CUDA_SUCCESS);
    EXPECT_EQ(uuid.bytes[0], 1);
  });
}

TEST(FakeCuda, AFaultCanDelayACall) {
  World("fault = cuDeviceGetCount delay_ms=50").Run([] {
    int count = 0;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(50));
  });
}

TEST(FakeCuda, AFaultCanKillTheProcess) {
  const World world("fault = cuDeviceGetCount die=1");
  const int status = world
                         .Start([] {
                           int count = 0;
                           cuInit(0);
                           cuDeviceGetCount(&count);
                         })
                         .Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(FakeCuda, EntryPointsAreFoundByNameAndVersion) {
  World().Run([] {
    void* found = nullptr;
    void* first = ::dlsym(RTLD_DEFAULT, "cuCtxGetDevice");
    void* second = ::dlsym(RTLD_DEFAULT, "cuCtxGetDevice_v2");
    CUdriverProcAddressQueryResult status{};
    EXPECT_EQ(cuGetProcAddress("cuCtxGetDevice", &found, 12090, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(found, first);
    EXPECT_EQ(cuGetProcAddress("cuCtxGetDevice", &found, 13000, 0, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(found, second);
    EXPECT_EQ(cuGetProcAddress("cuMemCreate", &found, 9000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(cuGetProcAddress("cuMemAlloc_v2", &found, 13000, 0, &status), CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(cuGetProcAddress("cuInit", &found, 13010, 0, &status), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(FakeCuda, TheTraceTellsCallsOfAllProcessesAndWhatIsLeft) {
  const World world;
  const auto body = [] {
    UseDevice();
    MakeMemory(kUnit);
  };
  world.Run(body);
  world.Run(body);
  EXPECT_EQ(world.Traced("\"call\":\"cuMemCreate\",\"result\":0,\"bytes\":2097152,\"handle\":1}"),
            2);
  EXPECT_EQ(world.Traced("\"event\":\"atexit\",\"leaks\":1,\"handles\":1"), 2);
}

}  // namespace
}  // namespace ckptd::fake_cuda
