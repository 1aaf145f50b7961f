// What a daemon keeps on a GPU between loads, by the fake driver.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "client/cpp/device_memory.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/testing/cuda.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using client::DeviceMemory;

constexpr uint64_t kBytes = 5 << 20;

// Whether this process holds a context on that GPU.
bool HasContext(int gpu = 0) {
  const auto ask = reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(
      ::dlsym(::dlopen(CKPTD_FAKE_CUDA_LIBRARY, RTLD_NOW), "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(ask(gpu, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

class RestingMemory : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, Make(false));
    for (uint64_t i = 0; i < kBytes; ++i) bytes_.push_back(static_cast<std::byte>(i % 253));
  }
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Make(bool keep) {
    return CudaMemory::Create(TestGpu(), {.budget_bytes = 64 << 20,
                                          .staging_bytes = 8 << 20,
                                          .kernels = TestKernels(),
                                          .keep_engine = keep});
  }
  std::unique_ptr<Slab> ReleaseStaging(AttachMode mode = AttachMode::kShared) {
    auto slab = memory_->Allocate(kBytes, mode).value();
    WriteBytes(slab->view(), 0, bytes_);
    memory_->ReleaseStaging(*slab);
    return slab;
  }
  bool Holds(const SlabView& view) { return ReadBytes(view, 0, kBytes) == bytes_; }

  std::unique_ptr<CudaMemory> memory_;
  std::vector<std::byte> bytes_;
};

TEST_F(RestingMemory, GivesTheContextBackBetweenLoads) {
  EXPECT_FALSE(HasContext()) << "nothing was loaded yet";
  const auto first = memory_->Allocate(kBytes, AttachMode::kShared).value();
  const auto second = ReleaseStaging();
  EXPECT_TRUE(HasContext()) << "the first is being filled";
  EXPECT_EQ(memory_->Usage().staging, 8 << 20);
  memory_->ReleaseStaging(*first);
  EXPECT_FALSE(HasContext());
  EXPECT_EQ(memory_->Usage().staging, 0);
  EXPECT_EQ(memory_->Usage().used, 2 * (8 << 20)) << "the slabs are there";
  EXPECT_NE(memory_->tier().find("at rest"), std::string::npos);
}

TEST_F(RestingMemory, IsReadByWakingForAsLongAsThatTakes) {
  const auto slab = ReleaseStaging();
  {
    const SlabView one = slab->view();
    const SlabView two = slab->view();
    EXPECT_TRUE(Holds(one));
    EXPECT_TRUE(HasContext());
    EXPECT_TRUE(Holds(two));
  }
  EXPECT_FALSE(HasContext());
  EXPECT_TRUE(Holds(slab->view())) << "again";
}

TEST_F(RestingMemory, IsHandedOutWithoutWaking) {
  const auto slab = ReleaseStaging();
  ASSERT_OK(memory_->Seal(*slab));
  ASSERT_OK_AND_ASSIGN(SlabHandle handle, memory_->Export(*slab, AttachMode::kShared));
  EXPECT_FALSE(HasContext());
  ASSERT_OK_AND_ASSIGN(const DeviceMemory client,
                       DeviceMemory::Import(handle.fds.front(), handle.device,
                                            handle.segment_bytes.front(), AttachMode::kShared));
  std::vector<std::byte> read(kBytes);
  ASSERT_OK(client.Read(0, read));
  EXPECT_TRUE(read == bytes_);
}

TEST_F(RestingMemory, IsTakenWithoutWaking) {
  auto slab = ReleaseStaging(AttachMode::kExclusive);
  ASSERT_OK(memory_->Export(*slab, AttachMode::kExclusive));
  memory_->TransferOwnership(std::move(slab));
  EXPECT_FALSE(HasContext());
  EXPECT_EQ(memory_->Usage().used, 0);
}

TEST_F(RestingMemory, IsNotWrittenAnyMore) {
  const auto slab = ReleaseStaging();
  EXPECT_FALSE(slab->view().staged->OpenLane().ok());
  EXPECT_FALSE(HasContext());
}

TEST_F(RestingMemory, KeepsTheContextForMemoryThatIsOpenedByName) {
  const auto slab = memory_->Allocate(kBytes, AttachMode::kShared, HandleKind::kCudaIpc).value();
  memory_->ReleaseStaging(*slab);
  EXPECT_TRUE(HasContext());
}

TEST_F(RestingMemory, ContextsOnPeersGoWithTheLoad) {
  const auto other = CudaMemory::Create(TestGpu(1), {.budget_bytes = 64 << 20}).value();
  const auto theirs = other->Allocate(kBytes, AttachMode::kShared).value();
  const UniqueFd fd = other->SegmentFd(theirs->segments()[0].id).value();
  ASSERT_OK_AND_ASSIGN(auto imported,
                       memory_->ImportPeer(other->device(), fd, theirs->segments()[0].bytes));
  EXPECT_TRUE(HasContext(0));
  WriteBytes({{}, imported}, 0, bytes_);
  imported.reset();
  EXPECT_FALSE(HasContext(0));
  EXPECT_TRUE(Holds(theirs->view()));
}

TEST_F(RestingMemory, ContextsAreKeptWhereThatIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(memory_, Make(true));
  const auto slab = ReleaseStaging();
  EXPECT_TRUE(HasContext());
  EXPECT_NE(memory_->tier().find("context kept"), std::string::npos);
}

}  // namespace
}  // namespace ckptd
