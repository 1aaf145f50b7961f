// Device memory with a handle of 64 bytes (legacy CUDA IPC), and how it differs.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/contract/memory_cuda/other_process.h"

namespace ckptd {
namespace {

constexpr uint64_t kBlock = 2 << 20;

// How often the fake has traced `what`, in all processes.
size_t Traced(const std::string& what) {
  const std::filesystem::path config = ::getenv("CKPTD_FAKE_CUDA");
  std::ifstream trace(config.parent_path() / "trace");
  size_t count = 0;
  for (std::string line; std::getline(trace, line);) count += line.find(what) != line.npos ? 1 : 0;
  return count;
}
size_t Calls(const std::string& name) { return Traced("\"call\":\"" + name + "\",\"result\":0"); }

class CudaIpcContract : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, CudaMemory::Create(TestGpu(), {.budget_bytes = 64 << 20,
                                                                 .staging_bytes = 8 << 20}));
    violations_ = Traced("\"violation\"");
  }
  void TearDown() override { EXPECT_EQ(Traced("\"violation\""), violations_); }

  std::unique_ptr<Slab> Published(uint64_t bytes) {
    auto slab = memory_->Allocate(bytes, AttachMode::kShared, HandleKind::kCudaIpc);
    EXPECT_OK(slab);
    EXPECT_OK(memory_->Seal(**slab));
    return *std::move(slab);
  }
  SlabHandle Exported(Slab& slab) { return memory_->Export(slab, AttachMode::kShared).value(); }

  std::unique_ptr<CudaMemory> memory_;
  size_t violations_ = 0;
};

TEST_F(CudaIpcContract, ASlabIsAnAllocationOfItsOwnInWholeBlocks) {
  const size_t before = Calls("cuMemAlloc");
  const auto slab = Published(kBlock + 1);
  const SlabHandle handle = Exported(*slab);
  EXPECT_EQ(handle.kind, HandleKind::kCudaIpc);
  EXPECT_EQ(handle.segment_bytes, std::vector<uint64_t>{2 * kBlock});
  EXPECT_EQ(handle.ipc_handle.size(), 64U);
  EXPECT_TRUE(handle.fds.empty());
  EXPECT_EQ(Calls("cuMemAlloc"), before + 1);
}

TEST_F(CudaIpcContract, ItIsNeverHandedOverExclusive) {
  ASSERT_OK_AND_ASSIGN(const auto slab, memory_->Allocate(kBlock, AttachMode::kExclusive,
                                                          HandleKind::kCudaIpc));
  EXPECT_THAT(memory_->Export(*slab, AttachMode::kExclusive),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
}

TEST_F(CudaIpcContract, OtherDaemonsGetNoDescriptorOfIt) {
  const auto slab = Published(kBlock);
  EXPECT_THAT(memory_->SegmentFd(slab->segments()[0].id),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
  EXPECT_EQ(memory_->OwnedSegments(), std::vector<uint64_t>{slab->segments()[0].id});
}

TEST_F(CudaIpcContract, ItsMakerCannotOpenItAndIsToldWhatItNeeds) {
  const auto slab = Published(kBlock);
  const SlabHandle handle = Exported(*slab);
  const auto refused =
      DeviceMemory::Open(handle.ipc_handle, handle.device, kBlock, AttachMode::kShared);
  ASSERT_THAT(refused, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
  EXPECT_NE(MessageOf(refused.status()).find("PID namespace"), std::string::npos);
}

TEST_F(CudaIpcContract, AProcessOpensAHandleOnceHoweverManyShareIt) {
  const auto slab = Published(kBlock);
  WriteBytes(slab->view(), 0, std::vector<std::byte>(4, std::byte{0x5a}));
  const size_t opened = Calls("cuIpcOpenMemHandle");
  const size_t closed = Calls("cuIpcCloseMemHandle");
  ASSERT_OK_AND_ASSIGN(auto one, SlabOfOtherProcess::Attach(Exported(*slab), AttachMode::kShared));
  ASSERT_OK_AND_ASSIGN(auto two, SlabOfOtherProcess::Attach(Exported(*slab), AttachMode::kShared));
  EXPECT_EQ(dynamic_cast<SlabOfOtherProcess&>(*one).address(),
            dynamic_cast<SlabOfOtherProcess&>(*two).address());
  EXPECT_EQ(Calls("cuIpcOpenMemHandle"), opened + 1);
  one.reset();
  EXPECT_EQ(Calls("cuIpcCloseMemHandle"), closed);
  EXPECT_EQ(two->Read(0, 4), std::vector<std::byte>(4, std::byte{0x5a}));
  two.reset();
  EXPECT_EQ(Calls("cuIpcCloseMemHandle"), closed + 1);
}

TEST_F(CudaIpcContract, APrivateClientKeepsNothingOpen) {
  auto slab = Published(kBlock);
  WriteBytes(slab->view(), 5, std::vector<std::byte>{std::byte{0x5a}});
  const size_t closed = Calls("cuIpcCloseMemHandle");
  const size_t mapped = Calls("cuMemCreate");
  ASSERT_OK_AND_ASSIGN(const auto client,
                       SlabOfOtherProcess::Attach(Exported(*slab), AttachMode::kPrivate));
  EXPECT_EQ(Calls("cuIpcCloseMemHandle"), closed + 1);
  EXPECT_EQ(Calls("cuMemCreate"), mapped) << "a GPU that lends memory by name may have no other";
  slab.reset();
  EXPECT_EQ(client->Read(5, 1)[0], std::byte{0x5a});
}

TEST_F(CudaIpcContract, AnAnnouncedSizeThatTheMemoryHasNotIsRefusedAndNothingStaysOpen) {
  const auto slab = Published(kBlock);
  SlabHandle handle = Exported(*slab);
  const size_t closed = Calls("cuIpcCloseMemHandle");
  handle.segment_bytes = {kBlock + 1};
  EXPECT_THAT(SlabOfOtherProcess::Attach(std::move(handle), AttachMode::kShared),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  EXPECT_EQ(Calls("cuIpcCloseMemHandle"), closed + 1);
}

TEST_F(CudaIpcContract, WhatIsNoHandleIsRefused) {
  const std::string device = TestGpu()->info().uuid;
  for (const size_t size : {0, 63, 65}) {
    EXPECT_THAT(DeviceMemory::Open(std::string(size, 'x'), device, kBlock, AttachMode::kShared),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
  }
  EXPECT_THAT(DeviceMemory::Open(std::string(64, 'x'), device, kBlock, AttachMode::kShared),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDeviceFailed));
  EXPECT_THAT(DeviceMemory::Open(std::string(64, 'x'), device, kBlock, AttachMode::kExclusive),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
}

TEST_F(CudaIpcContract, MemoryIsFreeAgainWithItsSlab) {
  const uint64_t before = TestGpu()->FreeBytes().value();
  auto slab = Published(3 * kBlock);
  EXPECT_EQ(memory_->Usage().used, 3 * kBlock);
  EXPECT_EQ(TestGpu()->FreeBytes().value(), before - 3 * kBlock);
  slab.reset();
  EXPECT_EQ(memory_->Usage().used, 0U);
  EXPECT_EQ(TestGpu()->FreeBytes().value(), before);
}

}  // namespace
}  // namespace ckptd
