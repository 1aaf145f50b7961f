// The contract on both forms: mapped memory of peers, and frames that the other rank places.
#include "tests/contract/transfer/transfer_contract.h"

#include <fcntl.h>
#include <stdlib.h>

#include "server/comm/host/host_peer_memory.h"
#include "server/comm/host/peer_socket.h"
#include "server/transfer/direct_reads.h"
#include "server/transfer/frame_receiver.h"
#include "server/transfer/io_mode.h"
#include "tests/testing/frame_sinks.h"
#include "tests/testing/page_cache.h"
#include "tests/testing/small_memory.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
constexpr std::chrono::seconds kPatience{10};

// Each rank has host memory of its own. The reader maps it through the rank's socket.
class MappedPeers final : public ReachedRanks {
 public:
  explicit MappedPeers(World& world) : world_(world) {
    reader_.SetSecret(kSecret);
    for (size_t rank = 0; rank < world.plans.size(); ++rank) peers_.push_back(MakePeer(rank));
  }
  ~MappedPeers() override { peers_.clear(); }

  TransferTarget Target(size_t rank) override {
    TransferTarget target;
    target.plan = &world_.plans[rank];
    if (peers_[rank].slab == nullptr) return target;
    PeerSlab described;
    described.rank = static_cast<uint32_t>(rank);
    described.incarnation = "first";
    described.endpoint = Endpoint(rank);
    described.host = "here";
    for (const Segment& segment : peers_[rank].slab->segments()) {
      described.segments.push_back({segment.id, segment.bytes});
    }
    target.slab = reader_.Map(described, std::chrono::steady_clock::now() + kPatience).value();
    return target;
  }
  SlabView Owned(size_t rank) override {
    return peers_[rank].slab == nullptr ? SlabView() : peers_[rank].slab->view();
  }
  absl::StatusOr<std::vector<uint64_t>> Digests(size_t rank,
                                                const TransferResult& result) override {
    return result.digests.at(rank);
  }

 private:
  struct Peer {
    std::unique_ptr<HostMemory> memory;
    std::unique_ptr<PeerSocket> socket;
    std::unique_ptr<Slab> slab;  // null: the rank gets nothing
  };
  std::string Endpoint(size_t rank) const { return folder_ / std::to_string(rank); }
  Peer MakePeer(size_t rank) {
    Peer peer;
    const uint64_t bytes = world_.plans[rank].slab_bytes;
    peer.memory = MakeSmallMemory(bytes / kSmallSegment + 1);
    HostMemory* const memory = peer.memory.get();
    peer.socket = PeerSocket::Start({.path = Endpoint(rank)}, [memory](uint64_t id) {
                    return memory->OriginalFd(id);
                  }).value();
    peer.socket->SetSecret(kSecret);
    if (bytes == 0) return peer;
    peer.slab = peer.memory->Allocate(bytes, AttachMode::kShared).value();
    // The memory holds other bytes than zeros before the transfer.
    for (const auto& segment : peer.slab->view().segments) {
      std::fill(segment.begin(), segment.end(), std::byte{0xee});
    }
    return peer;
  }

  World& world_;
  TempFolder folder_;
  HostPeerMemory reader_{"here"};
  std::vector<Peer> peers_;
};

// Each rank checks the frames and places them into its own memory.
class StreamedFrames final : public ReachedRanks {
 public:
  StreamedFrames(World& world, bool digests) : world_(world) {
    const auto index = std::make_shared<const CheckpointIndex>(world.index);
    for (size_t rank = 0; rank < world.plans.size(); ++rank) {
      receivers_.push_back(
          FrameReceiver::Make(index, world.plans[rank], world.targets[rank].slab, digests).value());
      sinks_.push_back(std::make_unique<DirectSink>(*receivers_.back()));
    }
  }

  TransferTarget Target(size_t rank) override {
    TransferTarget target;
    target.plan = &world_.plans[rank];
    target.sink = sinks_[rank].get();
    return target;
  }
  SlabView Owned(size_t rank) override { return world_.targets[rank].slab; }
  absl::StatusOr<std::vector<uint64_t>> Digests(size_t rank, const TransferResult&) override {
    CKPTD_RETURN_IF_ERROR(receivers_[rank]->Close(kPatience));
    return receivers_[rank]->Digests();
  }

 private:
  World& world_;
  std::vector<std::unique_ptr<FrameReceiver>> receivers_;
  std::vector<std::unique_ptr<DirectSink>> sinks_;
};

std::vector<TransferForm> Forms() {
  return {{"MappedPeers", [](World& world, bool) { return std::make_unique<MappedPeers>(world); }},
          {"StreamedFrames", [](World& world, bool digests) {
             return std::make_unique<StreamedFrames>(world, digests);
           }}};
}

// Items that are longer than one direct read, not aligned in the file: a cast that narrows, for
// two ranks; columns shared by three ranks, and a few distant ones for one; and a cast up to the
// end of the file.
class LongItems : public TransferContract {
 protected:
  void SetUp() override {
    world_ = std::make_unique<World>(1, 3);
    world_->AddBytes(0, 3, 1);
    const uint64_t floats = world_->AddBytes(0, 1500 * 1024 * 4, 2);
    const uint64_t columns = world_->AddBytes(0, 1000 * 9000, 3);
    const uint64_t wide = world_->AddBytes(0, 30 * 200'000, 4);
    const uint64_t last = world_->AddBytes(0, 700'001 * 4, 5);
    const uint64_t whole[3] = {1, 1500, 1024};
    for (size_t rank = 0; rank < 3; ++rank) {
      if (rank > 0) {
        world_->AddTensor(rank, 0, floats, Dtype::kF32, Dtype::kBF16, whole, {{}, {1, 1500, 1024}});
      }
      world_->AddTensor(rank, 0, columns, Dtype::kU8, Dtype::kU8, {1, 1000, 9000},
                        {{0, 0, rank * 3000}, {1, 1000, 3000}});
    }
    world_->AddTensor(0, 0, wide, Dtype::kU8, Dtype::kU8, {1, 30, 200'000},
                      {{0, 0, 777}, {1, 30, 5000}});
    world_->AddTensor(0, 0, last, Dtype::kF32, Dtype::kBF16, {1, 1, 700'001},
                      {{}, {1, 1, 700'001}});
    Finish();
  }
  bool MayBeReadDirectly() const {
    const UniqueFd fd(::open(world_->index.files[0].path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    return fd.valid() && DirectReads::Create(1, 4096) != nullptr;
  }
  bool Drop() const { return DropFromPageCache(world_->index.files[0].path); }
};

TEST_P(LongItems, AreInTheirPlacesWithDigests) {
  Drop();
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  ExpectAllPlaced();
  ExpectDigests(result);
}

TEST_P(LongItems, AreReadPastThePageCacheWherePossible) {
  if (!MayBeReadDirectly()) GTEST_SKIP() << "no O_DIRECT, or no io_uring";
  if (!Drop() && GetParam().io_mode == IoMode::kAuto) GTEST_SKIP() << "it stays in the page cache";
  ASSERT_OK(Run());
  const IoMode io_mode = GetParam().io_mode;
  const bool direct = io_mode == IoMode::kDirect || io_mode == IoMode::kAuto;
  EXPECT_EQ(progress_->storage_bytes.load(), world_->NeededBytes());
  EXPECT_EQ(progress_->direct_bytes.load(), direct ? world_->NeededBytes() : 0);
}

std::vector<TransferCase> WaysAndThreads() {
  std::vector<TransferCase> cases = EveryWayToRead(Forms());
  for (const TransferForm& form : Forms()) {
    cases.push_back({form, IoMode::kAuto, 1});
    cases.push_back({form, IoMode::kDirect, 3});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Forms, AnyTransfer, testing::ValuesIn(Worlds(Forms(), 6)),
                         TransferCaseName);
INSTANTIATE_TEST_SUITE_P(Forms, NarrowColumns, testing::ValuesIn(EveryWayToRead(Forms())),
                         TransferCaseName);
INSTANTIATE_TEST_SUITE_P(Forms, LongItems, testing::ValuesIn(WaysAndThreads()), TransferCaseName);
INSTANTIATE_TEST_SUITE_P(Forms, LongTransfer, testing::ValuesIn(EveryWayToRead(Forms())),
                         TransferCaseName);

}  // namespace
}  // namespace ckptd
