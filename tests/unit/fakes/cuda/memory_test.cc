// Copies, fills, pinned memory, and what is known about addresses.
#include <sys/mman.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

using Bytes = std::vector<unsigned char>;

CUdeviceptr Allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  return address;
}

Bytes Pattern(std::size_t size) {
  Bytes bytes(size);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(1));
  return bytes;
}

Bytes Read(CUdeviceptr address, std::size_t size) {
  Bytes bytes(size);
  EXPECT_EQ(cuMemcpyDtoH(bytes.data(), address, size), CUDA_SUCCESS);
  return bytes;
}

TEST(FakeMemory, BytesGoRoundThroughEveryKindOfCopy) {
  World("gpus = 2").Run([] {
    UseDevice();
    const Bytes pattern = Pattern(1000);
    const CUdeviceptr a = Allocate(1000);
    const CUdeviceptr b = Allocate(1000);
    CUcontext context = nullptr;
    EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyHtoD(a, pattern.data(), 1000), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoD(b, a, 1000), CUDA_SUCCESS);
    EXPECT_EQ(Read(b, 1000), pattern);
    EXPECT_EQ(cuMemsetD8(a, 0, 1000), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyPeerAsync(a, context, b, context, 1000, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(Read(a, 1000), pattern);
    Bytes out(1000);
    EXPECT_EQ(cuMemcpy(reinterpret_cast<CUdeviceptr>(out.data()), a, 1000), CUDA_SUCCESS);
    EXPECT_EQ(out, pattern);
  });
}

TEST(FakeMemory, A2DCopyTakesRowsOutOfAMatrix) {
  World().Run([] {
    UseDevice();
    const Bytes pattern = Pattern(64);
    const CUdeviceptr matrix = Allocate(64);
    ASSERT_EQ(cuMemcpyHtoD(matrix, pattern.data(), 64), CUDA_SUCCESS);
    Bytes part(6);
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = matrix;
    copy.srcPitch = 8;
    copy.srcXInBytes = 2;
    copy.srcY = 1;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = part.data();
    copy.WidthInBytes = 3;
    copy.Height = 2;
    EXPECT_EQ(cuMemcpy2DAsync(&copy, nullptr), CUDA_SUCCESS);
    EXPECT_EQ(part, (Bytes{11, 12, 13, 19, 20, 21}));
    copy.srcPitch = 2;
    EXPECT_EQ(cuMemcpy2DAsync(&copy, nullptr), CUDA_ERROR_INVALID_VALUE) << "rows overlap";
  });
}

TEST(FakeMemory, FillsHaveElementsOfOneOrFourBytes) {
  World().Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(12);
    EXPECT_EQ(cuMemsetD32(address, 0x04030201, 3), CUDA_SUCCESS);
    EXPECT_EQ(Read(address, 12), (Bytes{1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}));
    EXPECT_EQ(cuMemsetD32(address + 2, 0, 1), CUDA_ERROR_INVALID_VALUE) << "alignment";
  });
}

TEST(FakeMemory, ACopyBeyondAnAllocationIsRefused) {
  World().Run([] {
    UseDevice();
    Bytes bytes(2000);
    const CUdeviceptr address = Allocate(1000);
    EXPECT_EQ(cuMemcpyHtoD(address, bytes.data(), 1001), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyDtoH(bytes.data(), address + 1, 1000), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemsetD8(address, 0, ~std::size_t{0}), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyHtoD(address + 1000, bytes.data(), 0), CUDA_SUCCESS);
  });
}

TEST(FakeMemory, UseAfterFreeIsAViolation) {
  const World world;
  world.Run([] {
    UseDevice();
    const CUdeviceptr address = Allocate(1000);
    ASSERT_EQ(cuMemFree(address), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(address + 5, 0, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree(address), CUDA_ERROR_INVALID_VALUE);
    EXPECT_NE(Allocate(1000), address) << "addresses are not used again";
  });
  EXPECT_EQ(world.Traced("violation: use after free"), 1);
  EXPECT_EQ(world.Traced("violation: cuMemFree"), 1);
}

TEST(FakeMemory, AllocationsGiveTheirMemoryBack) {
  World("bytes = 0x400000").Run([] {
    UseDevice();
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAlloc(&address, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
    for (int round = 0; round < 5; ++round) {
      ASSERT_EQ(cuMemAlloc(&address, 2 * kUnit), CUDA_SUCCESS);
      EXPECT_EQ(FreeBytes(), 0U);
      ASSERT_EQ(cuMemFree(address), CUDA_SUCCESS);
      EXPECT_EQ(FreeBytes(), 2 * kUnit);
    }
  });
}

TEST(FakeMemory, HostMemoryIsRegisteredOnceAndUnregisteredByItsStart) {
  World().Run([] {
    UseDevice();
    alignas(4096) static char memory[16384];
    CUdeviceptr device = 0;
    EXPECT_EQ(cuMemHostRegister(memory, sizeof memory, CU_MEMHOSTREGISTER_PORTABLE), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostRegister(memory + 4096, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(cuMemHostGetDevicePointer(&device, memory + 100, 0), CUDA_SUCCESS);
    EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(memory + 100));
    EXPECT_EQ(cuMemHostUnregister(memory + 4096), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    EXPECT_EQ(cuMemHostUnregister(memory), CUDA_SUCCESS);
    EXPECT_EQ(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

TEST(FakeMemory, HostMemoryThatIsNotThereIsNotRegistered) {
  World().Run([] {
    UseDevice();
    void* hole = ::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::munmap(static_cast<char*>(hole) + 4096, 4096);
    EXPECT_EQ(cuMemHostRegister(hole, 8192, CU_MEMHOSTREGISTER_READ_ONLY),
              CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(FakeMemory, ReadOnlyHostMemoryNeedsTheFlag) {
  World().Run([] {
    UseDevice();
    void* memory = ::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_EQ(cuMemHostRegister(memory, 8192, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemHostRegister(memory, 8192, CU_MEMHOSTREGISTER_READ_ONLY), CUDA_SUCCESS);
  });
}

TEST(FakeMemory, AttributesTellWhatAnAddressIs) {
  World().Run([] {
    UseDevice();
    const CUdeviceptr mapped = MapMemory(MakeMemory(kUnit), kUnit);
    void* pinned = nullptr;
    ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
    unsigned type = 0;
    std::uint64_t kinds = 0;
    CUdeviceptr start = 0;
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(pinned)),
              CUDA_SUCCESS);
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
    void* answers[] = {&type, &start, &kinds};
    EXPECT_EQ(cuPointerGetAttributes(3, asked, answers, mapped + 7), CUDA_SUCCESS);
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    EXPECT_EQ(start, mapped);
    EXPECT_EQ(kinds, static_cast<std::uint64_t>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(&kinds)),
              CUDA_ERROR_INVALID_VALUE);
  });
}

}  // namespace
}  // namespace ckptd::fake_cuda
