// Modules and launches: kernels run as their host twins.
#include <string>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

const char kPtx[] = ".version 8.0\n.target sm_80\n.visible .entry add() {}\n.entry unsized() {}\n";

struct AddParams {
  CUdeviceptr to;
  unsigned long count;
  unsigned char term;
};

std::string Twins(const std::string& lines = "") { return lines + "\ntwins = " + CKPTD_FAKE_TWINS; }

CUfunction Kernel(const char* name) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
  return function;
}

CUresult Launch(CUfunction function, AddParams& params, unsigned grid = 1, unsigned block = 256,
                CUstream stream = nullptr, unsigned shared = 0) {
  void* list[] = {&params};
  return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, list, nullptr);
}

CUdeviceptr Allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  return address;
}

unsigned char Peek(CUdeviceptr address) {
  return *reinterpret_cast<const volatile unsigned char*>(address);
}

TEST(FakeKernels, ALaunchRunsTheTwin) {
  World(Twins()).Run([] {
    UseDevice();
    AddParams params{Allocate(600), 600, 3};
    EXPECT_EQ(Launch(Kernel("add"), params, 2, 256), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Peek(params.to + 511), 3);
    EXPECT_EQ(Peek(params.to + 512), 0) << "grid times block";
  });
}

TEST(FakeKernels, ALazyLaunchKeepsItsParameters) {
  World(Twins("lazy = 1")).Run([] {
    UseDevice();
    AddParams params{Allocate(8), 8, 3};
    const CUdeviceptr to = params.to;
    EXPECT_EQ(Launch(Kernel("add"), params), CUDA_SUCCESS);
    params = {};
    EXPECT_EQ(Peek(to), 0);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    EXPECT_EQ(Peek(to), 3);
  });
}

TEST(FakeKernels, ATwinWithoutSizeRunsWithinTheCall) {
  World(Twins("lazy = 1")).Run([] {
    UseDevice();
    AddParams params{Allocate(8), 8, 3};
    EXPECT_EQ(Launch(Kernel("unsized"), params), CUDA_SUCCESS);
    EXPECT_EQ(Peek(params.to), 3);
  });
}

TEST(FakeKernels, MemoryInParametersMayNotBeUnmappedBeforeTheLaunchIsDone) {
  const World world(Twins("lazy = 1"));
  world.Run([] {
    UseDevice();
    const CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit);
    AddParams params{address + 100, 8, 3};
    EXPECT_EQ(Launch(Kernel("add"), params), CUDA_SUCCESS);
    EXPECT_EQ(cuMemUnmap(address, kUnit), CUDA_ERROR_INVALID_VALUE);
  });
  EXPECT_EQ(world.Traced("violation: memory is unmapped"), 1);
}

TEST(FakeKernels, WhatIsNoImageIsNotLoaded) {
  World().Run([] {
    UseDevice();
    CUmodule module = nullptr;
    EXPECT_EQ(cuModuleLoadData(&module, "rubbish"), CUDA_ERROR_INVALID_IMAGE);
    const unsigned fatbin[4] = {0xba55ed50};
    EXPECT_EQ(cuModuleLoadData(&module, fatbin), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST(FakeKernels, AFunctionNeedsItsNameInTheImageAndATwin) {
  World(Twins()).Run([] {
    UseDevice();
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    const char ptx[] = ".version 8.0\n.entry lonely() {}\n";
    ASSERT_EQ(cuModuleLoadData(&module, ptx), CUDA_SUCCESS);
    EXPECT_EQ(cuModuleGetFunction(&function, module, "lonely"), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(cuModuleGetFunction(&function, module, "add"), CUDA_ERROR_NOT_FOUND);
  });
}

TEST(FakeKernels, LaunchesHaveLimits) {
  World(Twins()).Run([] {
    UseDevice();
    AddParams params{Allocate(8), 8, 1};
    const CUfunction add = Kernel("add");
    EXPECT_EQ(Launch(add, params, 0, 256), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(add, params, 1, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(add, params, 1, 1025), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(add, params, 0x80000000U, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(add, params, 1, 1, nullptr, 49 * 1024), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(Launch(reinterpret_cast<CUfunction>(&params), params), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(Peek(params.to), 0);
  });
}

TEST(FakeKernels, BlockSizesAreSuggestedWithinTheLimit) {
  World(Twins()).Run([] {
    UseDevice();
    int grid = 0;
    int block = 0;
    EXPECT_EQ(cuOccupancyMaxPotentialBlockSize(&grid, &block, Kernel("add"), nullptr, 0, 128),
              CUDA_SUCCESS);
    EXPECT_GT(grid, 0);
    EXPECT_EQ(block, 128);
  });
}

}  // namespace
}  // namespace ckptd::fake_cuda
