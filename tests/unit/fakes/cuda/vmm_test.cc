// Memory of cuMemCreate: sharing between processes, refusals, accounting.
#include <fcntl.h>
#include <sys/mman.h>

#include <string>
#include <vector>

#include "tests/unit/fakes/cuda/world.h"

namespace ckptd::fake_cuda {
namespace {

constexpr CUmemAccess_flags kRead = CU_MEM_ACCESS_FLAGS_PROT_READ;
constexpr CUmemAccess_flags kReadWrite = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
constexpr std::size_t kGpuBytes = 8 * kUnit;
const char kSmall[] = "bytes = 0x1000000";

// Makes memory full of `value` and passes it to end 1 of the channel; its handle.
CUmemGenericAllocationHandle Offer(const Channel& channel, unsigned char value) {
  const CUmemGenericAllocationHandle handle = MakeMemory(2 * kUnit);
  const CUdeviceptr address = MapMemory(handle, 2 * kUnit);
  EXPECT_EQ(cuMemsetD8(address, value, 2 * kUnit), CUDA_SUCCESS);
  const int fd = ExportMemory(handle);
  channel.Send(0, "!", 1, fd);
  ::close(fd);
  return handle;
}

CUmemGenericAllocationHandle Take(const Channel& channel) {
  char byte = 0;
  const int fd = channel.Receive(1, &byte, 1);
  const CUmemGenericAllocationHandle handle = ImportMemory(fd);
  ::close(fd);
  return handle;
}

TEST(FakeVmm, BytesReachAnotherProcessThroughADescriptor) {
  const World world;
  const Channel channel;
  Child exporter = world.Start([&] {
    UseDevice();
    Offer(channel, 0x5a);
    channel.Hear(0);
  });
  world.Run([&] {
    UseDevice();
    const CUdeviceptr address = MapMemory(Take(channel), 2 * kUnit, kRead);
    std::vector<unsigned char> bytes(2 * kUnit);
    EXPECT_EQ(cuMemcpyDtoH(bytes.data(), address, bytes.size()), CUDA_SUCCESS);
    EXPECT_EQ(bytes, std::vector<unsigned char>(2 * kUnit, 0x5a));
    channel.Say(1);
  });
  EXPECT_EQ(exporter.Wait(), 0);
}

TEST(FakeVmm, MemoryForNetworkCardsIsMadeWhereTheAttributeSaysSo) {
  const auto make = [] {
    CUmemAllocationProp properties = Shareable();
    properties.allocFlags.gpuDirectRDMACapable = 1;
    CUmemGenericAllocationHandle handle = 0;
    return cuMemCreate(&handle, kUnit, &properties, 0);
  };
  World().Run([&] {
    UseDevice();
    EXPECT_EQ(make(), CUDA_SUCCESS);
  });
  World("attribute.110 = 0").Run([&] {
    UseDevice();
    EXPECT_EQ(make(), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST(FakeVmm, WhatAttributesDenyIsNotSupported) {
  for (const char* const without : {"attribute.102 = 0", "attribute.103 = 0"}) {
    World(without).Run([] {
      UseDevice();
      const CUmemAllocationProp properties = Shareable();
      CUmemGenericAllocationHandle handle = 0;
      EXPECT_EQ(cuMemCreate(&handle, kUnit, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
    });
  }
}

TEST(FakeVmm, AWriteThroughAReadOnlyMappingBreaksTheProcess) {
  World().Run([] {
    UseDevice();
    const CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit, kRead);
    int count = 0;
    EXPECT_EQ(cuMemsetD8(address, 1, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST(FakeVmm, AWriteByHandToAReadOnlyMappingIsASignal) {
  const World world;
  const int status = world
                         .Start([] {
                           UseDevice();
                           const CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit, kRead);
                           ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would exit with a report
                           *reinterpret_cast<volatile char*>(address) = 1;
                         })
                         .Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST(FakeVmm, MemoryOutlivesItsMakerWhileAnotherProcessHoldsIt) {
  const World world(kSmall);
  const Channel channel;
  Child maker = world.Start([&] {
    UseDevice();
    Offer(channel, 7);
    channel.Hear(0);
  });
  const Channel control;
  Child holder = world.Start([&] {
    UseDevice();
    Take(channel);
    control.Say(0);
    control.Hear(0);
  });
  control.Hear(1);
  maker.Kill();
  world.Run([] {
    UseDevice();
    EXPECT_EQ(FreeBytes(), kGpuBytes - 2 * kUnit);
  });
  holder.Kill();
  world.Run([] {
    UseDevice();
    EXPECT_EQ(FreeBytes(), kGpuBytes);
  });
}

TEST(FakeVmm, ADescriptorAloneHoldsMemoryEvenWithoutCuda) {
  const World world(kSmall);
  const Channel channel;
  world.Run([&] {
    UseDevice();
    Offer(channel, 7);
  });
  // In flight on the socket, then in this process, which never calls the driver.
  const auto used = [] {
    UseDevice();
    EXPECT_EQ(FreeBytes(), kGpuBytes - 2 * kUnit);
  };
  world.Run(used);
  char byte = 0;
  const int fd = channel.Receive(1, &byte, 1);
  world.Run(used);
  ::close(fd);
  world.Run([] {
    UseDevice();
    EXPECT_EQ(FreeBytes(), kGpuBytes);
  });
}

TEST(FakeVmm, MemoryIsCountedOverProcessesAndRunsOut) {
  const World world(kSmall);
  const Channel channel;
  Child other = world.Start([&] {
    UseDevice();
    MakeMemory(5 * kUnit);
    channel.Say(0);
    channel.Hear(0);
  });
  channel.Hear(1);
  world.Run([&] {
    UseDevice();
    const CUmemAllocationProp prop = Shareable();
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemCreate(&handle, 4 * kUnit, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc(&address, 4 * kUnit), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemCreate(&handle, 3 * kUnit, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(FreeBytes(), 0U);
  });
}

TEST(FakeVmm, AMappingHoldsMemoryThatWasReleased) {
  World(kSmall).Run([] {
    UseDevice();
    const CUmemGenericAllocationHandle handle = MakeMemory(kUnit);
    const CUdeviceptr address = MapMemory(handle, kUnit);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(FreeBytes(), kGpuBytes - kUnit);
    EXPECT_EQ(cuMemUnmap(address, kUnit), CUDA_SUCCESS);
    EXPECT_EQ(FreeBytes(), kGpuBytes);
  });
}

TEST(FakeVmm, EachImportAndEachRetainNeedsItsRelease) {
  World(kSmall).Run([] {
    UseDevice();
    const CUmemGenericAllocationHandle handle = MakeMemory(kUnit);
    const CUdeviceptr address = MapMemory(handle, kUnit);
    CUmemGenericAllocationHandle retained = 0;
    EXPECT_EQ(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(address + 5)),
              CUDA_SUCCESS);
    EXPECT_EQ(retained, handle);
    const int fd = ExportMemory(handle);
    const CUmemGenericAllocationHandle imported = ImportMemory(fd);
    ::close(fd);
    EXPECT_EQ(cuMemUnmap(address, kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(FreeBytes(), kGpuBytes - kUnit);
    EXPECT_EQ(cuMemRelease(imported), CUDA_SUCCESS);
    EXPECT_EQ(FreeBytes(), kGpuBytes);
  });
}

TEST(FakeVmm, AReleaseTooManyIsAViolation) {
  const World world;
  world.Run([] {
    UseDevice();
    const CUmemGenericAllocationHandle handle = MakeMemory(kUnit);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  });
  EXPECT_EQ(world.Traced("violation: cuMemRelease"), 1);
}

TEST(FakeVmm, SizesAreMultiplesOfTheGranularity) {
  World().Run([] {
    UseDevice();
    const CUmemAllocationProp prop = Shareable();
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    std::size_t granularity = 0;
    EXPECT_EQ(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
              CUDA_SUCCESS);
    EXPECT_EQ(granularity, kUnit);
    EXPECT_EQ(cuMemCreate(&handle, kUnit + 4096, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAddressReserve(&address, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemAddressReserve(&address, kUnit, 3 * kUnit, 0, 0), CUDA_ERROR_INVALID_VALUE);
  });
}

TEST(FakeVmm, OnlyMemoryMadeForItCanBeExported) {
  World().Run([] {
    UseDevice();
    CUmemAllocationProp prop = Shareable();
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    CUmemGenericAllocationHandle handle = 0;
    int fd = -1;
    ASSERT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_SUCCESS);
    EXPECT_EQ(
        cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    EXPECT_EQ(cuMemCreate(&handle, kUnit, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
  });
}

TEST(FakeVmm, AnyOtherDescriptorIsNotImported) {
  World().Run([] {
    UseDevice();
    const int fd = ::open("/dev/zero", O_RDWR | O_CLOEXEC);
    void* shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemImportFromShareableHandle(&handle, shareable,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_ERROR_INVALID_VALUE);
    ::close(fd);
  });
}

TEST(FakeVmm, AFileThatOnlyHasTheNameOfMemoryIsNotImported) {
  World().Run([] {
    UseDevice();
    const int fd = ::memfd_create("vmm-0-2097152-1-1", MFD_CLOEXEC);
    void* shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(fd));
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemImportFromShareableHandle(&handle, shareable,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
              CUDA_ERROR_INVALID_VALUE)
        << "it is shorter than that";
    ::close(fd);
  });
}

TEST(FakeVmm, FilesOfMemoryThatNobodyHoldsAreRemoved) {
  const World world;
  world.Run([] {
    UseDevice();
    MakeMemory(kUnit);
  });
  world.Run([] {
    UseDevice();
    FreeBytes();
  });
  for (const auto& entry : std::filesystem::directory_iterator(world.folder() + "/state")) {
    EXPECT_EQ(entry.path().filename(), "lock");
  }
}

TEST(FakeVmm, AMappingStartsAtTheBeginningInAFreePlaceOfAReservation) {
  World().Run([] {
    UseDevice();
    const CUmemGenericAllocationHandle handle = MakeMemory(2 * kUnit);
    CUdeviceptr address = 0;
    ASSERT_EQ(cuMemAddressReserve(&address, 3 * kUnit, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(address, kUnit, kUnit, handle, 0), CUDA_ERROR_INVALID_VALUE) << "offset";
    EXPECT_EQ(cuMemMap(address, 3 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE) << "size";
    EXPECT_EQ(cuMemMap(address + 2 * kUnit, 2 * kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
        << "beyond the reservation";
    EXPECT_EQ(cuMemMap(address, 2 * kUnit, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(address + kUnit, kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE)
        << "mapped already";
  });
}

TEST(FakeVmm, AMappingIsNotAccessibleBeforeAccessIsSet) {
  World().Run([] {
    UseDevice();
    CUdeviceptr address = 0;
    ASSERT_EQ(cuMemAddressReserve(&address, kUnit, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address, kUnit, 0, MakeMemory(kUnit), 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(address, 1, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST(FakeVmm, AccessIsSetForRangesThatAreMappedWholly) {
  World().Run([] {
    UseDevice();
    const CUmemAccessDesc access = Access(kReadWrite);
    const CUmemAccessDesc stranger = Access(kReadWrite, 1);
    CUdeviceptr address = 0;
    ASSERT_EQ(cuMemAddressReserve(&address, 3 * kUnit, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address, 2 * kUnit, 0, MakeMemory(2 * kUnit), 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(address, 3 * kUnit, &access, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemSetAccess(address, kUnit, &access, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemSetAccess(address, 2 * kUnit, &stranger, 1), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(cuMemSetAccess(address, 2 * kUnit, &access, 1), CUDA_SUCCESS);
    unsigned long long flags = 0;
    EXPECT_EQ(cuMemGetAccess(&flags, &access.location, address + kUnit), CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned long long>(kReadWrite));
  });
}

TEST(FakeVmm, OnePartOfAMappingIsNotUnmapped) {
  World().Run([] {
    UseDevice();
    const CUdeviceptr address = MapMemory(MakeMemory(2 * kUnit), 2 * kUnit);
    EXPECT_EQ(cuMemUnmap(address, kUnit), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemUnmap(address + kUnit, kUnit), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemUnmap(address, 2 * kUnit), CUDA_SUCCESS);
  });
}

TEST(FakeVmm, AReservationIsFreedWholeAndEmpty) {
  World().Run([] {
    UseDevice();
    const CUdeviceptr address = MapMemory(MakeMemory(2 * kUnit), 2 * kUnit);
    EXPECT_EQ(cuMemAddressFree(address, 2 * kUnit), CUDA_ERROR_INVALID_VALUE) << "mapped";
    ASSERT_EQ(cuMemUnmap(address, 2 * kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(address, kUnit), CUDA_ERROR_INVALID_VALUE) << "a part";
    EXPECT_EQ(cuMemAddressFree(address, 2 * kUnit), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(address, 2 * kUnit), CUDA_ERROR_INVALID_VALUE) << "twice";
  });
}

TEST(FakeVmm, OtherMemoryCanBeMappedAtTheSameAddresses) {
  World().Run([] {
    UseDevice();
    CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit);
    ASSERT_EQ(cuMemUnmap(address, kUnit), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address, kUnit, 0, MakeMemory(kUnit), 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemUnmap(address, kUnit), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAddressFree(address, kUnit), CUDA_SUCCESS);
    CUdeviceptr again = 0;
    EXPECT_EQ(cuMemAddressReserve(&again, kUnit, 0, address, 0), CUDA_SUCCESS);
    EXPECT_EQ(again, address);
  });
}

TEST(FakeVmm, ACopyOverAdjacentMappingsIsOneCopy) {
  World().Run([] {
    UseDevice();
    const CUmemAccessDesc access = Access(kReadWrite);
    CUdeviceptr address = 0;
    ASSERT_EQ(cuMemAddressReserve(&address, 2 * kUnit, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address, kUnit, 0, MakeMemory(kUnit), 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemMap(address + kUnit, kUnit, 0, MakeMemory(kUnit), 0), CUDA_SUCCESS);
    ASSERT_EQ(cuMemSetAccess(address, 2 * kUnit, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(address + kUnit / 2, 3, kUnit), CUDA_SUCCESS);
  });
}

TEST(FakeVmm, PeersAreGivenAccessOneByOne) {
  World("gpus = 2").Run([] {
    const CUmemGenericAllocationHandle handle = [] {
      UseDevice(0);
      return MakeMemory(kUnit);
    }();
    const CUdeviceptr address = MapMemory(handle, kUnit);
    UseDevice(1);
    EXPECT_EQ(cuMemsetD8(address, 1, 8), CUDA_ERROR_ILLEGAL_ADDRESS);
  });
}

TEST(FakeVmm, WithoutPeersAccessIsRefused) {
  World("gpus = 2\npeers = 0").Run([] {
    UseDevice(0);
    const CUdeviceptr address = MapMemory(MakeMemory(kUnit), kUnit);
    const CUmemAccessDesc access = Access(kReadWrite, 1);
    int can = 1;
    EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 1), CUDA_SUCCESS);
    EXPECT_EQ(can, 0);
    EXPECT_EQ(cuMemSetAccess(address, kUnit, &access, 1), CUDA_ERROR_INVALID_DEVICE);
  });
}

TEST(FakeVmm, FreshMemoryCanBeFullOfRubbish) {
  World("fill = 0xcb").Run([] {
    UseDevice();
    unsigned char byte = 0;
    EXPECT_EQ(cuMemcpyDtoH(&byte, MapMemory(MakeMemory(kUnit), kUnit) + 77, 1), CUDA_SUCCESS);
    EXPECT_EQ(byte, 0xcb);
  });
}

}  // namespace
}  // namespace ckptd::fake_cuda
