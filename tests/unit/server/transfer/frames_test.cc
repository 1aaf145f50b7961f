// A transfer to ranks whose memory is not mapped: frames are cut, sent and placed.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "server/transfer/frame_receiver.h"
#include "server/transfer/transfer.h"
#include "tests/testing/frame_sinks.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr std::chrono::seconds kPatience{5};

// Three ranks. Those in `remote` get their bytes in frames.
class RemoteRanks {
 public:
  RemoteRanks(uint64_t seed, const std::vector<size_t>& remote, bool digests = true) {
    FillAtRandom(world, seed, 5 * kMiB);
    world.Finish(3 * 4096);
    const auto index = std::make_shared<const CheckpointIndex>(world.index);
    targets = world.targets;
    receivers.resize(3);
    sinks.resize(3);
    for (const size_t r : remote) {
      receivers[r] =
          FrameReceiver::Make(index, world.plans[r], world.targets[r].slab, digests).value();
      sinks[r] = std::make_unique<DirectSink>(*receivers[r]);
      targets[r].slab = {};
      targets[r].sink = sinks[r].get();
    }
    options.threads = 3;
    options.digests = digests;
  }

  void ExpectAllPlaced() const {
    for (size_t r = 0; r < 3; ++r) {
      for (size_t t = 0; t < world.expected[r].size(); ++t) {
        ASSERT_TRUE(world.Tensor(r, t) == world.expected[r][t]) << "rank " << r << " tensor " << t;
      }
    }
  }

  World world{2, 3};
  std::vector<TransferTarget> targets;
  std::vector<std::unique_ptr<FrameReceiver>> receivers;
  std::vector<std::unique_ptr<DirectSink>> sinks;
  TransferProgress progress{3};
  TransferOptions options;
};

class Frames : public ::testing::TestWithParam<uint64_t> {};

TEST_P(Frames, FillTheSlabsOfRemoteAndOfLocalRanks) {
  RemoteRanks world(GetParam(), {1, 2});
  ASSERT_OK(RunTransfer(world.world.index, world.targets, world.options, world.progress));
  world.ExpectAllPlaced();
}

TEST_P(Frames, CarryWhatTheirRankNeedsAndNoMore) {
  RemoteRanks world(GetParam(), {0, 1, 2}, false);
  ASSERT_OK_AND_ASSIGN(const TransferResult result, RunTransfer(world.world.index, world.targets,
                                                                world.options, world.progress));
  EXPECT_EQ(result.storage_bytes, world.world.NeededBytes());
  for (size_t r = 0; r < 3; ++r) {
    uint64_t needed = 0;
    const RankPlan& plan = world.world.plans[r];
    for (const uint64_t bytes : ReadBytesPerFile(world.world.index, {plan})) needed += bytes;
    EXPECT_EQ(world.sinks[r]->sent_bytes, needed);
    EXPECT_EQ(world.sinks[r]->finished, 1);
    EXPECT_EQ(result.done[r], plan.tensor_bytes);
    EXPECT_EQ(world.receivers[r]->placed_bytes(), plan.tensor_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Worlds, Frames, ::testing::Range<uint64_t>(100, 108));

class HostileFrame : public ::testing::Test {
 protected:
  // A plan of one rank: 4096 F32 elements at byte 16 of a file, cast to BF16.
  void SetUp() override {
    offset_ = world_.AddBytes(0, 16, 1) + 16;
    world_.AddBytes(0, 4 * 4096, 2);
    world_.AddTensor(0, 0, offset_, Dtype::kF32, Dtype::kBF16, {1, 1, 4096}, {{}, {1, 1, 4096}});
    world_.AddBytes(0, 100, 3);
    world_.Finish(4096);
    receiver_ = FrameReceiver::Make(std::make_shared<const CheckpointIndex>(world_.index),
                                    world_.plans[0], world_.targets[0].slab, true)
                    .value();
  }

  // A valid frame with elements [first, last).
  FrameHeader Header(uint64_t first, uint64_t last) const {
    const auto bytes = Payload(first, last);
    return {0, offset_ + 4 * first, offset_ + 4 * last, Xxh3(bytes)};
  }
  std::span<const std::byte> Payload(uint64_t first, uint64_t last) const {
    return std::span(world_.Content(0)).subspan(offset_ + 4 * first, 4 * (last - first));
  }
  absl::Status Take(const FrameHeader& header, std::span<const std::byte> payload) {
    return receiver_->Take(header, Ragged(payload));
  }

  uint64_t offset_ = 0;
  World world_{1, 1};
  std::unique_ptr<FrameReceiver> receiver_;
};

TEST_F(HostileFrame, ThatIsWholeAndRightIsPlaced) {
  ASSERT_OK(Take(Header(2048, 4096), Payload(2048, 4096)));
  ASSERT_OK(Take(Header(0, 2048), Payload(0, 2048)));
  EXPECT_TRUE(world_.Tensor(0, 0) == world_.expected[0][0]);
  ASSERT_OK(receiver_->Close(kPatience));
  ASSERT_OK_AND_ASSIGN(const auto digests, receiver_->Digests());
  EXPECT_EQ(digests[0], TensorDigest(world_.expected[0][0]));
}

TEST_F(HostileFrame, WithAFlippedBitIsDataLossThatNamesFileOffsetTensorAndRank) {
  std::vector<std::byte> payload(Payload(0, 64).begin(), Payload(0, 64).end());
  payload[17] ^= std::byte{4};
  const absl::Status status = Take(Header(0, 64), payload);
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kDataLoss, reason::kTransferCorrupt));
  const Facts facts = FactsOf(status);
  EXPECT_EQ(facts.at("file"), world_.index.files[0].path);
  EXPECT_EQ(facts.at("offset"), "16");
  EXPECT_EQ(facts.at("rank"), "0");
  EXPECT_EQ(facts.at("tensor"), world_.plans[0].tensors[0].name);
}

TEST_F(HostileFrame, ThatFailedEndsAllReceivingWithItsReason) {
  FrameHeader header = Header(0, 64);
  header.checksum ^= 1;
  ASSERT_THAT(Take(header, Payload(0, 64)), Says("checksum"));
  EXPECT_THAT(Take(Header(64, 128), Payload(64, 128)), Says("no more bytes"));
  EXPECT_THAT(receiver_->Close(kPatience),
              FailsWith(absl::StatusCode::kDataLoss, reason::kTransferCorrupt));
}

TEST_F(HostileFrame, OfAnotherFileOrOutsideItIsRefused) {
  FrameHeader header = Header(0, 64);
  header.file = 1;
  EXPECT_THAT(Take(header, Payload(0, 64)), Says("no such file"));
}

TEST_F(HostileFrame, ThatReachesPastTheEndOfTheFileIsRefused) {
  FrameHeader header = Header(0, 4096);
  header.end = world_.Content(0).size() + 1;
  EXPECT_THAT(Take(header, Payload(0, 4096)), Says("no such range"));
}

TEST_F(HostileFrame, ThatEndsBeforeItBeginsIsRefused) {
  FrameHeader header = Header(0, 64);
  std::swap(header.begin, header.end);
  EXPECT_THAT(Take(header, Payload(0, 64)), Says("no such range"));
}

TEST_F(HostileFrame, WithMoreOrFewerBytesThanThePlanNeedsIsRefused) {
  EXPECT_THAT(Take(Header(0, 64), Payload(0, 65)), Says("260 bytes came, and the plan needs 256"));
}

TEST_F(HostileFrame, WhereThePlanNeedsNothingIsRefused) {
  EXPECT_THAT(Take({0, 0, 16, 0}, Payload(0, 4)), Says("the plan needs 0"));
}

TEST_F(HostileFrame, WithoutBytesIsRefused) {
  EXPECT_THAT(Take({0, 0, 16, Xxh3(std::span<const std::byte>())}, {}), Says("0 bytes"));
}

TEST_F(HostileFrame, ThatCutsAnElementIsRefused) {
  FrameHeader header = Header(0, 64);
  header.begin += 2;
  header.end += 2;
  EXPECT_THAT(Take(header, Payload(0, 64)), Says("an element is cut"));
}

TEST_F(HostileFrame, ThatComesTwiceIsRefused) {
  ASSERT_OK(Take(Header(0, 64), Payload(0, 64)));
  ASSERT_OK(Take(Header(64, 128), Payload(64, 128)));
  EXPECT_THAT(Take(Header(127, 130), Payload(127, 130)), Says("came before"));
}

TEST_F(HostileFrame, AfterTheEndIsRefused) {
  ASSERT_OK(receiver_->Close(kPatience));
  EXPECT_THAT(Take(Header(0, 64), Payload(0, 64)),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kTransferInvalid));
}

TEST_F(HostileFrame, ThatNeverCameLeavesNoDigest) {
  ASSERT_OK(Take(Header(0, 64), Payload(0, 64)));
  ASSERT_OK(receiver_->Close(kPatience));
  EXPECT_THAT(receiver_->Digests(), FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

TEST(Sink, ThatFailsEndsTheTransferWithItsError) {
  RemoteRanks world(7, {1});
  world.sinks[1]->on_send = [](const Frame&) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost, "rank 1 is gone");
  };
  EXPECT_THAT(RunTransfer(world.world.index, world.targets, world.options, world.progress),
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_EQ(world.sinks[1]->finished, 0);
}

}  // namespace
}  // namespace ckptd
