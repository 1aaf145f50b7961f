// Legacy sharing: 64 bytes of cuIpcGetMemHandle.
#include <cstring>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

constexpr unsigned kLazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;

CUdeviceptr Allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  EXPECT_EQ(cuMemAlloc(&address, bytes), CUDA_SUCCESS);
  return address;
}

// Exports memory full of 0x5a and tells end 1 of the channel; its address.
CUdeviceptr Offer(const Channel& channel) {
  const CUdeviceptr address = Allocate(kUnit);
  CUipcMemHandle handle;
  EXPECT_EQ(cuMemsetD8(address, 0x5a, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcGetMemHandle(&handle, address), CUDA_SUCCESS);
  channel.Send(0, &handle, sizeof handle);
  return address;
}

CUresult Take(const Channel& channel, CUdeviceptr& address) {
  CUipcMemHandle handle;
  channel.Receive(1, &handle, sizeof handle);
  return cuIpcOpenMemHandle(&address, handle, kLazy);
}

TEST(FakeIpc, AnotherProcessSeesTheSameBytes) {
  const World world;
  const Channel channel;
  Child exporter = world.Start([&] {
    UseDevice();
    const CUdeviceptr address = Offer(channel);
    channel.Hear(0);
    unsigned char byte = 0;
    EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
    EXPECT_EQ(byte, 0x77);
  });
  world.Run([&] {
    UseDevice();
    CUdeviceptr address = 0;
    unsigned char byte = 0;
    ASSERT_EQ(Take(channel, address), CUDA_SUCCESS);
    EXPECT_EQ(cuMemcpyDtoH(&byte, address, 1), CUDA_SUCCESS);
    EXPECT_EQ(byte, 0x5a);
    EXPECT_EQ(cuMemsetD8(address, 0x77, 1), CUDA_SUCCESS);
    channel.Say(1);
  });
  EXPECT_EQ(exporter.Wait(), 0);
}

TEST(FakeIpc, TheExporterCannotOpenItsOwnHandle) {
  World().Run([] {
    UseDevice();
    const Channel channel;
    CUdeviceptr address = 0;
    Offer(channel);
    EXPECT_EQ(Take(channel, address), CUDA_ERROR_INVALID_CONTEXT);
  });
}

TEST(FakeIpc, OpeningTwiceCountsAndGivesTheSameAddress) {
  const World world;
  const Channel channel;
  Child exporter = world.Start([&] {
    UseDevice();
    Offer(channel);
    channel.Hear(0);
  });
  world.Run([&] {
    UseDevice();
    CUipcMemHandle handle;
    CUdeviceptr first = 0;
    CUdeviceptr second = 0;
    channel.Receive(1, &handle, sizeof handle);
    ASSERT_EQ(cuIpcOpenMemHandle(&first, handle, kLazy), CUDA_SUCCESS);
    ASSERT_EQ(cuIpcOpenMemHandle(&second, handle, kLazy), CUDA_SUCCESS);
    EXPECT_EQ(first, second);
    EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(first, 1, 1), CUDA_SUCCESS) << "open still";
    EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(first, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_ERROR_INVALID_VALUE);
    channel.Say(1);
  });
  EXPECT_EQ(world.Traced("violation: use after free"), 1);
}

TEST(FakeIpc, OnlyTheBaseOfMemoryOfCuMemAllocHasAHandle) {
  World().Run([] {
    UseDevice();
    CUipcMemHandle handle;
    const CUdeviceptr block = Allocate(kUnit);
    const CUdeviceptr mapped = MapMemory(MakeMemory(kUnit), kUnit);
    unsigned capable = 2;
    EXPECT_EQ(cuIpcGetMemHandle(&handle, block), CUDA_SUCCESS);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, block + 512), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, mapped), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(
        cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, mapped),
        CUDA_SUCCESS);
    EXPECT_EQ(capable, 0U);
  });
}

TEST(FakeIpc, ImportedMemoryIsNotExportedAgain) {
  const World world;
  const Channel channel;
  Child exporter = world.Start([&] {
    UseDevice();
    Offer(channel);
    channel.Hear(0);
  });
  world.Run([&] {
    UseDevice();
    CUipcMemHandle handle;
    CUdeviceptr address = 0;
    ASSERT_EQ(Take(channel, address), CUDA_SUCCESS);
    EXPECT_EQ(cuIpcGetMemHandle(&handle, address), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree(address), CUDA_ERROR_INVALID_VALUE) << "it is to be closed";
    channel.Say(1);
  });
}

TEST(FakeIpc, TheFlagIsRequiredAndOtherBytesAreNoHandle) {
  World().Run([] {
    UseDevice();
    CUipcMemHandle handle = {};
    CUdeviceptr address = 0;
    EXPECT_EQ(cuIpcOpenMemHandle(&address, handle, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuIpcOpenMemHandle(&address, handle, kLazy), CUDA_ERROR_INVALID_HANDLE);
    std::memset(&handle, 'x', sizeof handle);
    EXPECT_EQ(cuIpcOpenMemHandle(&address, handle, kLazy), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST(FakeIpc, AHandleOfMemoryThatIsGoneCannotBeOpened) {
  const World world;
  const Channel channel;
  world.Run([&] {
    UseDevice();
    Offer(channel);
  });
  world.Run([&] {
    UseDevice();
    CUdeviceptr address = 0;
    EXPECT_EQ(Take(channel, address), CUDA_ERROR_INVALID_HANDLE);
  });
}

TEST(FakeIpc, FreeingWhatAnotherProcessHasOpenIsAViolation) {
  const World world;
  const Channel channel;
  Child exporter = world.Start([&] {
    UseDevice();
    const CUdeviceptr address = Offer(channel);
    channel.Hear(0);
    EXPECT_EQ(cuMemFree(address), CUDA_SUCCESS);
    channel.Say(0);
  });
  world.Run([&] {
    UseDevice();
    CUdeviceptr address = 0;
    ASSERT_EQ(Take(channel, address), CUDA_SUCCESS);
    channel.Say(1);
    channel.Hear(1);
  });
  EXPECT_EQ(exporter.Wait(), 0);
  EXPECT_EQ(world.Traced("violation: cuMemFree of memory that another process has open"), 1);
}

}  // namespace
}  // namespace ckptd::fake_cuda
