// Copies of whole slabs between host memory and GPUs, by the fake driver.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/reasons.h"
#include "server/memory/cuda/cuda_memory.h"
#include "server/transfer/frame_receiver.h"
#include "server/transfer/transfer.h"
#include "tests/testing/cuda.h"
#include "tests/testing/slab_bytes.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = (7 << 20) + 12'345;

// Segments of odd lengths, as host memory may have them.
class InHostMemory {
 public:
  InHostMemory() {
    for (const uint64_t bytes : {uint64_t{3} << 20, uint64_t{1'000'003}, uint64_t{5} << 20}) {
      segments_.emplace_back(bytes);
    }
    for (auto& segment : segments_) view_.segments.emplace_back(segment);
  }
  const SlabView& view() const { return view_; }

 private:
  std::vector<std::vector<std::byte>> segments_;
  SlabView view_;
};

class CopySlabTest : public testing::Test {
 protected:
  void SetUp() override {
    for (size_t gpu = 0; gpu < 2; ++gpu) {
      const CudaMemoryOptions options = {.budget_bytes = 64 << 20, .staging_bytes = 12 << 20};
      ASSERT_OK_AND_ASSIGN(memory_[gpu], CudaMemory::Create(TestGpu(gpu), options));
      ASSERT_OK_AND_ASSIGN(slab_[gpu], memory_[gpu]->Allocate(kBytes, AttachMode::kShared));
    }
    for (uint64_t i = 0; i < kBytes; ++i) expected_.push_back(static_cast<std::byte>(i % 251));
    WriteBytes(host_.view(), 0, expected_);
  }
  void ExpectCopied(const SlabView& from, const SlabView& to, unsigned threads) {
    ASSERT_OK(CopySlab(from, to, kBytes, threads));
    EXPECT_TRUE(ReadBytes(to, 0, kBytes) == expected_);
  }

  InHostMemory host_;
  std::unique_ptr<CudaMemory> memory_[2];
  std::unique_ptr<Slab> slab_[2];
  std::vector<std::byte> expected_;
};

TEST_F(CopySlabTest, GoesToAGpuAndBackAndFromGpuToGpu) {
  InHostMemory back;
  InHostMemory other;
  ExpectCopied(host_.view(), other.view(), 2);
  ExpectCopied(host_.view(), slab_[0]->view(), 3);
  ExpectCopied(slab_[0]->view(), slab_[1]->view(), 1);
  ExpectCopied(slab_[1]->view(), back.view(), 0);
  EXPECT_EQ(ReadBytes(back.view(), kBytes, 1)[0], std::byte{0}) << "behind the end";
}

TEST_F(CopySlabTest, OfNothingDoesNothing) {
  EXPECT_OK(CopySlab(host_.view(), slab_[0]->view(), 0, 2));
}

// A load that failed must not hold a GPU's memory, nor its staging memory, until the next one.
TEST(FrameReceiverOnGpu, KeepsNothingOfTheGpuOnceAFrameWasCorrupt) {
  World world(1, 1);
  const uint64_t offset = world.AddBytes(0, 400'000, 3);
  world.AddTensor(0, 0, offset, Dtype::kU8, Dtype::kU8, {1, 1000, 400}, {{}, {1, 1000, 400}});
  world.Finish(uint64_t{1} << 20);
  const auto device = TestGpu(0);
  const uint64_t before = device->FreeBytes().value();
  const CudaMemoryOptions options = {
      .budget_bytes = 64 << 20, .staging_bytes = 12 << 20, .keep_engine = false};
  auto memory = CudaMemory::Create(device, options).value();
  auto slab = memory->Allocate(world.plans[0].slab_bytes, AttachMode::kShared).value();
  const auto receiver = FrameReceiver::Make(std::make_shared<const CheckpointIndex>(world.index),
                                            world.plans[0], slab->view(), true)
                            .value();
  const FrameHeader lie = {0, offset, offset + 1000, 1};
  const std::span<const std::byte> bytes = std::span(world.Content(0)).subspan(offset, 1000);
  EXPECT_THAT(receiver->Take(lie, {&bytes, 1}),
              FailsWith(absl::StatusCode::kDataLoss, reason::kTransferCorrupt));
  slab.reset();
  EXPECT_EQ(device->FreeBytes().value(), before);
  EXPECT_EQ(memory->Usage().staging, 0u);
}

}  // namespace
}  // namespace ckptd
