// The contract on device memory, by the fake driver or a real GPU, and properties that only a
// driver has.
#include <fcntl.h>
#include <unistd.h>

#include <thread>

#include "client/cpp/device_memory.h"
#include "common/cuda/stream.h"
#include "server/memory/cuda/cuda_bytes.h"
#include "server/memory/cuda/cuda_memory.h"
#include "tests/contract/memory/memory_contract.h"
#include "tests/contract/memory/outliving_memory_contract.h"
#include "tests/contract/memory_cuda/other_process.h"
#include "tests/testing/cuda.h"

namespace ckptd {
namespace {

// The recommended granularity.
const uint64_t kSegment = OnRealGpu() ? 2 << 20 : 4 << 20;
constexpr uint64_t kMinimum = 2 << 20;  // the driver's smallest mapping; blocks of cuMemAlloc

// For all tests of contract_cuda, including those of transfers.
class OnTheFake : public testing::Environment {
 public:
  // Late streams and dirty fresh memory make a missing wait or clear visible.
  void SetUp() override {
    UseTestCuda(
        "gpus = 2\nbytes = 0x40000000\nlazy = 1\nfill = 0xcb\ntrace = trace\n"
        "recommended_granularity = 0x400000\n"
        "name.1 = NVIDIA H100 80GB HBM3 MIG 1g.10gb\n"
        "twins = " CKPTD_TWINS "\n");
    OtherProcess::Start();  // before this process uses the driver, which does not survive a fork
  }
  void TearDown() override { OtherProcess::Stop(); }
};
const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new OnTheFake);

absl::StatusOr<std::unique_ptr<MemoryBackend>> MakeCuda(uint64_t budget) {
  return CudaMemory::Create(TestGpu(), {.budget_bytes = budget, .staging_bytes = 8 << 20});
}

// Imports a slab as client/cpp does.
class ImportedSlab final : public ClientMemory {
 public:
  explicit ImportedSlab(DeviceMemory memory) : memory_(std::move(memory)) {}
  static absl::StatusOr<std::unique_ptr<ClientMemory>> Attach(SlabHandle handle, AttachMode mode) {
    CKPTD_ASSIGN_OR_RETURN(DeviceMemory memory,
                           DeviceMemory::Import(handle.fds.front(), handle.device,
                                                handle.segment_bytes.front(), mode));
    return std::make_unique<ImportedSlab>(std::move(memory));
  }
  uint64_t bytes() const override { return memory_.bytes(); }
  std::vector<std::byte> Read(uint64_t offset, uint64_t bytes) const override {
    std::vector<std::byte> out(bytes);
    EXPECT_OK(memory_.Read(offset, out));
    return out;
  }
  void Write(uint64_t offset, std::span<const std::byte> bytes) override {
    const auto device = TestGpu();
    ASSERT_OK_AND_ASSIGN(const CudaStream stream, CudaStream::Make(device));
    {
      const CudaScope scope(*device);
      ASSERT_OK(device->Check(device->driver().MemcpyHtoDAsync(memory_.address() + offset,
                                                               bytes.data(), bytes.size(),
                                                               stream.get()),
                              "writing"));
    }
    ASSERT_OK(stream.Wait(std::chrono::seconds(60)));
  }

 private:
  DeviceMemory memory_;
};

absl::StatusOr<std::unique_ptr<MemoryBackend>> MakeResting(uint64_t budget) {
  return CudaMemory::Create(
      TestGpu(), {.budget_bytes = budget, .staging_bytes = 8 << 20, .keep_engine = false});
}

MemoryCase AtRest() { return {"CudaAtRest", MakeResting, kSegment, ImportedSlab::Attach}; }

MemoryCase Descriptors() { return {"Cuda", MakeCuda, kSegment, ImportedSlab::Attach}; }

MemoryCase Names() {
  return {"CudaIpc", MakeCuda, kMinimum, SlabOfOtherProcess::Attach, HandleKind::kCudaIpc};
}

INSTANTIATE_TEST_SUITE_P(Backends, MemoryContract,
                         testing::Values(Descriptors(), AtRest(), Names()), MemoryCaseName);
INSTANTIATE_TEST_SUITE_P(Backends, OutlivingMemoryContract,
                         testing::Values(Descriptors(), AtRest()), MemoryCaseName);

class CudaMemoryContract : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(memory_, CudaMemory::Create(TestGpu(), {.budget_bytes = 64 << 20,
                                                                 .staging_bytes = 8 << 20}));
  }
  uint64_t Free(size_t gpu = 0) { return TestGpu(gpu)->FreeBytes().value(); }
  std::unique_ptr<CudaMemory> memory_;
};

TEST_F(CudaMemoryContract, WhatIsClearedIsZeroAndNothingElseIs) {
  ASSERT_OK_AND_ASSIGN(const auto slab, memory_->Allocate(3 * kSegment + 5, AttachMode::kShared));
  const SlabView view = slab->view();
  ASSERT_EQ(view.staged->bytes(), 4 * kSegment);
  WriteBytes(view, 0, std::vector<std::byte>(4 * kSegment, std::byte{7}));
  const std::vector<SlabSpan> spans = {{0, 3}, {kSegment - 1, 2}, {3 * kSegment + 5, kSegment - 5}};
  ASSERT_OK(view.staged->Zero(spans));
  std::vector<std::byte> expected(4 * kSegment, std::byte{7});
  for (const SlabSpan& span : spans) {
    std::fill_n(expected.begin() + static_cast<ptrdiff_t>(span.offset), span.bytes, std::byte{0});
  }
  EXPECT_TRUE(ReadBytes(view) == expected);
}

TEST_F(CudaMemoryContract, WhatSlabsPassThroughIsZeroWheneverItIsReserved) {
  ASSERT_OK_AND_ASSIGN(const auto transit, memory_->MakeTransit());
  for (const uint64_t bytes : {kSegment, kSegment - 512, 2 * kSegment}) {
    ASSERT_OK(transit->Reserve(bytes));
    const SlabView view = {{}, transit->NewView(bytes)};
    transit->MapWindow(*view.staged, 0, 0);
    EXPECT_TRUE(ReadBytes(view) == std::vector<std::byte>(bytes)) << bytes;
    WriteBytes(view, 0, std::vector<std::byte>(bytes, std::byte{7}));
  }
}

TEST_F(CudaMemoryContract, MoreThanTheGpuHasFreeIsRefusedWithinTheBudget) {
  const uint64_t free = Free();
  ASSERT_OK_AND_ASSIGN(const auto large, CudaMemory::Create(TestGpu(), {.budget_bytes = 8 * free,
                                                                        .staging_bytes = 8 << 20}));
  const auto refused = large->Allocate(2 * free, AttachMode::kShared);
  ASSERT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(FactsOf(refused.status()).at("free_bytes"), std::to_string(free));
  EXPECT_EQ(FactsOf(refused.status()).at("device"), TestGpu()->info().uuid);
}

TEST_F(CudaMemoryContract, WholeAllocationsMustFitTheBudget) {
  for (const HandleKind kind : {HandleKind::kVmmFd, HandleKind::kCudaIpc}) {
    ASSERT_OK_AND_ASSIGN(const auto small, CudaMemory::Create(TestGpu(), {.budget_bytes = kSegment + 5,
                                                                          .staging_bytes = 8 << 20}));
    EXPECT_THAT(small->Allocate(kSegment + 1, AttachMode::kShared, kind),
                FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
    EXPECT_OK(small->Allocate(kSegment, AttachMode::kShared, kind));
  }
}

TEST_F(CudaMemoryContract, MemoryIsFreeAgainWhenTheLastOneLetsGo) {
  const uint64_t before = Free();
  ASSERT_OK_AND_ASSIGN(auto slab, memory_->Allocate(2 * kSegment, AttachMode::kShared));
  ASSERT_OK(memory_->Seal(*slab));
  ASSERT_OK_AND_ASSIGN(SlabHandle handle, memory_->Export(*slab, AttachMode::kShared));
  ASSERT_OK_AND_ASSIGN(auto client, ImportedSlab::Attach(std::move(handle), AttachMode::kShared));
  slab.reset();
  EXPECT_EQ(Free(), before - 2 * kSegment);
  client.reset();
  EXPECT_EQ(Free(), before);
}

TEST_F(CudaMemoryContract, AReadOnlyClientCannotWrite) {
  ASSERT_OK_AND_ASSIGN(const auto slab, memory_->Allocate(kSegment, AttachMode::kShared));
  ASSERT_OK(memory_->Seal(*slab));
  ASSERT_OK_AND_ASSIGN(const SlabHandle handle, memory_->Export(*slab, AttachMode::kShared));
  ASSERT_OK_AND_ASSIGN(const DeviceMemory memory,
                       DeviceMemory::Import(handle.fds.front(), handle.device,
                                            handle.segment_bytes.front(), AttachMode::kShared));
  // The fake's device addresses are addresses of this process.
  EXPECT_DEATH(*reinterpret_cast<volatile char*>(memory.address()) = 1, "");
}

TEST_F(CudaMemoryContract, APrivateClientReportsItsCopy) {
  ASSERT_OK_AND_ASSIGN(const auto slab, memory_->Allocate(kSegment + 1, AttachMode::kPrivate));
  ASSERT_OK(memory_->Seal(*slab));
  ASSERT_OK_AND_ASSIGN(const SlabHandle handle, memory_->Export(*slab, AttachMode::kPrivate));
  ASSERT_OK_AND_ASSIGN(const DeviceMemory memory,
                       DeviceMemory::Import(handle.fds.front(), handle.device,
                                            handle.segment_bytes.front(), AttachMode::kPrivate));
  EXPECT_EQ(memory.copied_bytes(), 2 * kSegment);
}

TEST_F(CudaMemoryContract, ASliceOfAGpuIsNamedAsOne) {
  const std::string slice = TestGpu(1)->info().uuid;
  EXPECT_EQ(slice.substr(0, 4), "MIG-");
  EXPECT_EQ(TestGpu(0)->info().uuid.substr(0, 4), "GPU-");
  // The bytes of the UUID alone name the same slice.
  EXPECT_EQ(FindGpu(TestGpu()->driver(), "GPU-" + slice.substr(4))->uuid, slice);
}

TEST_F(CudaMemoryContract, AGpuThatIsNotVisibleIsNamedWithThoseThatAre) {
  const auto refused = DeviceMemory::Import(UniqueFd(), "GPU-00000000-1111-2222-3333-444444444444",
                                            kSegment, AttachMode::kShared);
  ASSERT_THAT(refused, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNoDevice));
  EXPECT_NE(MessageOf(refused.status()).find(TestGpu(1)->info().uuid), std::string::npos);
}

TEST_F(CudaMemoryContract, ASizeThatNoAllocationHasIsRefused) {
  for (const uint64_t bytes : {uint64_t{0}, kMinimum - 1, ~uint64_t{0}}) {
    EXPECT_FALSE(
        DeviceMemory::Import(UniqueFd(), TestGpu()->info().uuid, bytes, AttachMode::kShared).ok());
  }
}

// Another driver may recommend another granularity.
TEST_F(CudaMemoryContract, WhatWasMadeElsewhereNeedsOnlyTheLeastGranularity) {
  const auto device = TestGpu();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->info().ordinal};
  CUmemGenericAllocationHandle made = 0;
  int fd = -1;
  ASSERT_OK(device->Check(device->driver().MemCreate(&made, kMinimum, &properties, 0), "making"));
  ASSERT_OK(device->Check(device->driver().MemExportToShareableHandle(
                              &fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                          "exporting"));
  const UniqueFd descriptor(fd);
  EXPECT_OK(DeviceMemory::Import(descriptor, device->info().uuid, kMinimum, AttachMode::kShared));
  device->driver().MemRelease(made);
}

TEST_F(CudaMemoryContract, ADescriptorOfOtherMemoryIsRefused) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(DeviceMemory::Import(file, TestGpu()->info().uuid, kSegment, AttachMode::kShared),
              FailsWith(absl::StatusCode::kUnavailable, reason::kDeviceFailed));
}

TEST_F(CudaMemoryContract, APeersSlabOnAnotherGpuIsWrittenThroughThisDaemonsStaging) {
  ASSERT_OK_AND_ASSIGN(const auto peer, CudaMemory::Create(TestGpu(1), {.budget_bytes = 64 << 20,
                                                                        .staging_bytes = 8 << 20}));
  ASSERT_OK_AND_ASSIGN(const auto slab, peer->Allocate(3 * kSegment, AttachMode::kShared));
  const Segment segment = slab->segments().front();
  ASSERT_OK_AND_ASSIGN(const UniqueFd fd, peer->SegmentFd(segment.id));
  ASSERT_OK_AND_ASSIGN(const auto view, memory_->ImportPeer(peer->device(), fd, segment.bytes));
  std::vector<std::byte> bytes(segment.bytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 4096);
  WriteBytes({{}, view}, 0, bytes);
  EXPECT_EQ(ReadBytes(slab->view()), bytes);
}

TEST_F(CudaMemoryContract, SeveralLanesWriteManySmallPiecesOfSeveralSlabs) {
  std::vector<std::unique_ptr<Slab>> slabs;
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(slabs.emplace_back(), memory_->Allocate(5 * kSegment, AttachMode::kShared));
  }
  constexpr uint64_t kPiece = 1000;
  const uint64_t pieces = 5 * kSegment / kPiece;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const auto lane = slabs[0]->view().staged->OpenLane().value();
      for (uint64_t p = t; p < pieces; p += 4) {
        for (size_t s = 0; s < slabs.size(); ++s) {
          for (uint64_t done = 0; done < kPiece;) {
            const StagedPlace place = {slabs[s]->view().staged.get(), p * kPiece};
            const auto room = lane->Stage({&place, 1}, done, kPiece - done);
            std::fill(room.begin(), room.end(), static_cast<std::byte>(p * 3 + s));
            done += room.size();
          }
        }
      }
      EXPECT_OK(lane->Finish());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t s = 0; s < slabs.size(); ++s) {
    const std::vector<std::byte> bytes = ReadBytes(slabs[s]->view());
    for (uint64_t i = 0; i < pieces * kPiece; ++i) {
      ASSERT_EQ(bytes[i], static_cast<std::byte>(i / kPiece * 3 + s)) << "slab " << s << " at " << i;
    }
  }
}

}  // namespace
}  // namespace ckptd
