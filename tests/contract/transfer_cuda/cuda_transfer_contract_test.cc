// The transfer contract for device memory, by the fake driver: slabs of peers that the reader
// imports, with kernels and without, and frames that a rank stages for its own GPU.
#include <stdlib.h>

#include "server/comm/host/host_peer_memory.h"
#include "server/comm/host/peer_socket.h"
#include "server/memory/cuda/cuda_memory.h"
#include "server/transfer/frame_receiver.h"
#include "tests/contract/transfer/transfer_contract.h"
#include "tests/testing/cuda.h"
#include "tests/testing/frame_sinks.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
constexpr std::chrono::seconds kPatience{10};
constexpr size_t kGpus = 2;

// Three slots, so that threads often wait for one.
std::unique_ptr<CudaMemory> MemoryOn(size_t gpu, bool kernels) {
  CudaMemoryOptions options = {.budget_bytes = 512 << 20, .staging_bytes = 12 << 20};
  if (kernels) options.kernels = TestKernels();
  return CudaMemory::Create(TestGpu(gpu), options).value();
}

// A rank's memory. The ranks use the GPUs in turn. Null slab: the rank gets nothing.
struct RankOnGpu {
  std::unique_ptr<CudaMemory> memory;
  std::unique_ptr<Slab> slab;

  RankOnGpu(const World& world, size_t rank, bool kernels)
      : memory(MemoryOn(rank % kGpus, kernels)) {
    const uint64_t bytes = world.plans[rank].slab_bytes;
    if (bytes > 0) slab = memory->Allocate(bytes, AttachMode::kShared).value();
  }
  SlabView view() const { return slab == nullptr ? SlabView() : slab->view(); }
};

// The reader is a daemon with a GPU of its own. It imports the others' slabs.
class ImportedPeers final : public ReachedRanks {
 public:
  ImportedPeers(World& world, bool kernels) : world_(world), own_(MemoryOn(0, kernels)) {
    reader_.SetSecret(kSecret);
    for (size_t rank = 0; rank < world.plans.size(); ++rank) {
      ranks_.emplace_back(world, rank, kernels);
      CudaMemory* const memory = ranks_.back().memory.get();
      sockets_.push_back(PeerSocket::Start({.path = Endpoint(rank)}, [memory](uint64_t id) {
                           return memory->SegmentFd(id);
                         }).value());
      sockets_.back()->SetSecret(kSecret);
    }
  }
  ~ImportedPeers() override { sockets_.clear(); }

  TransferTarget Target(size_t rank) override {
    TransferTarget target;
    target.plan = &world_.plans[rank];
    if (ranks_[rank].slab == nullptr) return target;
    const Segment segment = ranks_[rank].slab->segments().front();
    PeerSlab described;
    described.rank = static_cast<uint32_t>(rank);
    described.incarnation = "first";
    described.endpoint = Endpoint(rank);
    described.host = "here";
    described.device = ranks_[rank].memory->device();
    described.segments = {{segment.id, segment.bytes}};
    target.slab = reader_.Map(described, std::chrono::steady_clock::now() + kPatience).value();
    return target;
  }
  SlabView Owned(size_t rank) override { return ranks_[rank].view(); }
  absl::StatusOr<std::vector<uint64_t>> Digests(size_t rank,
                                                const TransferResult& result) override {
    return result.digests.at(rank);
  }

 private:
  std::string Endpoint(size_t rank) const { return folder_ / std::to_string(rank); }

  World& world_;
  TempFolder folder_;
  std::unique_ptr<CudaMemory> own_;
  HostPeerMemory reader_{"here",
                         [this](const std::string& uuid, const UniqueFd& fd, uint64_t bytes) {
                           return own_->ImportPeer(uuid, fd, bytes);
                         }};
  std::vector<RankOnGpu> ranks_;
  std::vector<std::unique_ptr<PeerSocket>> sockets_;
};

// Each rank checks the frames and places them in its GPU's memory.
class FramesToGpus final : public ReachedRanks {
 public:
  FramesToGpus(World& world, bool digests) : world_(world) {
    const auto index = std::make_shared<const CheckpointIndex>(world.index);
    for (size_t rank = 0; rank < world.plans.size(); ++rank) {
      ranks_.emplace_back(world, rank, true);
      receivers_.push_back(
          FrameReceiver::Make(index, world.plans[rank], ranks_.back().view(), digests).value());
      sinks_.push_back(std::make_unique<DirectSink>(*receivers_.back()));
    }
  }

  TransferTarget Target(size_t rank) override {
    TransferTarget target;
    target.plan = &world_.plans[rank];
    target.sink = sinks_[rank].get();
    return target;
  }
  SlabView Owned(size_t rank) override { return ranks_[rank].view(); }
  absl::StatusOr<std::vector<uint64_t>> Digests(size_t rank, const TransferResult&) override {
    CKPTD_RETURN_IF_ERROR(receivers_[rank]->Close(kPatience));
    return receivers_[rank]->Digests();
  }

 private:
  World& world_;
  std::vector<RankOnGpu> ranks_;
  std::vector<std::unique_ptr<FrameReceiver>> receivers_;
  std::vector<std::unique_ptr<DirectSink>> sinks_;
};

std::vector<TransferForm> Forms() {
  return {{"ImportedPeers",
           [](World& world, bool) { return std::make_unique<ImportedPeers>(world, true); }},
          {"FramesToGpus", [](World& world, bool digests) {
             return std::make_unique<FramesToGpus>(world, digests);
           }}};
}

// A ckptd that has no kernels, or none for this GPU.
std::vector<TransferForm> ByProcessor() {
  return {{"PeersWithoutKernels",
           [](World& world, bool) { return std::make_unique<ImportedPeers>(world, false); }}};
}

INSTANTIATE_TEST_SUITE_P(Forms, AnyTransfer, testing::ValuesIn(Worlds(Forms(), 2)),
                         TransferCaseName);
INSTANTIATE_TEST_SUITE_P(Forms, NarrowColumns, testing::ValuesIn(EveryWayToRead(Forms())),
                         TransferCaseName);
INSTANTIATE_TEST_SUITE_P(WithoutKernels, AnyTransfer, testing::ValuesIn(Worlds(ByProcessor(), 1)),
                         TransferCaseName);
INSTANTIATE_TEST_SUITE_P(WithoutKernels, NarrowColumns, testing::ValuesIn(Worlds(ByProcessor(), 1)),
                         TransferCaseName);
INSTANTIATE_TEST_SUITE_P(Forms, LongTransfer, testing::ValuesIn(EveryWayToRead(Forms())),
                         TransferCaseName);

}  // namespace
}  // namespace ckptd
