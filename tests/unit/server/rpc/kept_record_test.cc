// What a daemon leaves for the next one, which may be another version.
#include "server/rpc/kept_record.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "common/base/reasons.h"
#include "tests/testing/core_values.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

std::chrono::system_clock::time_point At(int64_t seconds) {
  return std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
}

KeptCheckpoint Checkpoint() {
  KeptCheckpoint kept;
  kept.info.name = "checkpoints/a";
  kept.info.rank = 1;
  kept.info.world_size = 2;
  kept.info.plan_digest = 5;
  kept.info.epoch = 6;
  kept.info.pinned = true;
  kept.info.created = At(1000);
  kept.info.activated = At(2000);
  kept.request = RuleRequest("fsdp:2", "/models/m");
  kept.files.push_back({"/models/m/a.safetensors", 100, "2", "4", "1", 3, 9});
  kept.request_digests = {7, 8};
  Shard shard = ShardOf(1 << 20, 12);
  shard.plan.tensors[0].aliases = {"tied"};
  shard.plan.tensors[0].bytes -= 512;
  shard.plan.flats.push_back({"flat", Dtype::kF32, 0, 128});
  shard.unexpected = {"other"};
  shard.digests = {13};
  shard.paths = {"/models/m/a.safetensors"};
  shard.file_of = {0};
  kept.shard = std::make_shared<const Shard>(std::move(shard));
  return kept;
}

KeptSlab SlabOf() {
  return {.kind = HandleKind::kVmmFd, .device = "GPU-1", .bytes = 1 << 20, .sealed = true,
          .segment_bytes = {2 << 20}};
}

void ExpectThatOne(const KeptFromRecord& kept) {
  const KeptCheckpoint expected = Checkpoint();
  const KeptCheckpoint& found = kept.checkpoint;
  EXPECT_EQ(found.info.name, expected.info.name);
  EXPECT_EQ(found.info.plan_digest, 5U);
  EXPECT_EQ(found.info.epoch, 6U);
  EXPECT_TRUE(found.info.pinned);
  EXPECT_EQ(found.info.created, At(1000));
  EXPECT_EQ(found.info.activated, At(2000));
  EXPECT_EQ(RequestDigest(found.request), RequestDigest(expected.request));
  EXPECT_EQ(found.files, expected.files);
  EXPECT_EQ(found.request_digests, expected.request_digests);
  const Shard& shard = *found.shard;
  ASSERT_EQ(shard.plan.tensors.size(), 1U);
  const PlannedTensor& tensor = shard.plan.tensors[0];
  EXPECT_EQ(tensor.name, "w");
  EXPECT_EQ(tensor.aliases, std::vector<std::string>{"tied"});
  EXPECT_EQ(tensor.dtype, Dtype::kU8);
  EXPECT_EQ(tensor.shape, Shape{1 << 20});
  EXPECT_EQ(tensor.bytes, (1U << 20) - 512);
  EXPECT_EQ(tensor.padded_bytes, 1U << 20);
  EXPECT_EQ(shard.plan.flats, expected.shard->plan.flats);
  EXPECT_EQ(shard.plan.digest, 12U);
  EXPECT_EQ(shard.plan.tensor_bytes, (1U << 20) - 512);
  EXPECT_EQ(shard.unexpected, expected.shard->unexpected);
  EXPECT_EQ(shard.digests, expected.shard->digests);
  EXPECT_EQ(shard.paths, expected.shard->paths);
  EXPECT_EQ(shard.file_of, expected.shard->file_of);
  EXPECT_EQ(kept.slab.kind, HandleKind::kVmmFd);
  EXPECT_EQ(kept.slab.device, "GPU-1");
  EXPECT_EQ(kept.slab.bytes, 1U << 20);
  EXPECT_EQ(kept.slab.segment_bytes, std::vector<uint64_t>{2 << 20});
  EXPECT_TRUE(kept.slab.sealed);
}

v1::KeptCheckpoint Message() { return ToProto(Checkpoint(), SlabOf()); }

TEST(KeptRecord, HasAllOfACheckpoint) {
  ASSERT_OK_AND_ASSIGN(const KeptFromRecord kept, FromProto(Message(), 1, 2));
  ExpectThatOne(kept);
}

TEST(KeptRecord, OfAnotherRankOrWorldSizeIsRefused) {
  for (const auto& [rank, world_size] : {std::pair(0U, 2U), std::pair(1U, 4U)}) {
    EXPECT_THAT(FromProto(Message(), rank, world_size),
                FailsWith(absl::StatusCode::kInvalidArgument, reason::kWrongWorldSize));
  }
}

// Each change makes it a message that cannot be.
TEST(KeptRecord, WithoutWhatItNeedsIsRefused) {
  using Change = void (*)(v1::KeptCheckpoint&);
  const Change changes[] = {
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->clear_dtypes(); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->set_dtypes(0, static_cast<v1::Dtype>(99)); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->set_ranks_of_shape(0, 2); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->set_offsets(0, 512); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->set_bytes(0, 2 << 20); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->set_alias_tensors(0, 1); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->clear_digests(); },
      [](v1::KeptCheckpoint& m) { m.mutable_pages(0)->clear_flat_elements(); },
      [](v1::KeptCheckpoint& m) { m.clear_file_of(); },
      [](v1::KeptCheckpoint& m) { m.mutable_slab()->clear_handle_kind(); },
      [](v1::KeptCheckpoint& m) { m.mutable_slab()->set_bytes(512); },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    v1::KeptCheckpoint message = Message();
    changes[i](message);
    EXPECT_THAT(FromProto(message, 1, 2),
                FailsWith(absl::StatusCode::kDataLoss, reason::kDigestMismatch))
        << i;
  }
}

TEST(KeptRecord, HasAllOfALeaseButItsProcess) {
  LeaseInfo lease;
  lease.name = "checkpoints/a/leases/b";
  lease.checkpoint = "checkpoints/a";
  lease.mode = AttachMode::kPrivate;
  lease.created = At(1000);
  ASSERT_OK_AND_ASSIGN(const LeaseInfo found, FromProto(ToProto(lease)));
  EXPECT_EQ(found.name, lease.name);
  EXPECT_EQ(found.checkpoint, lease.checkpoint);
  EXPECT_EQ(found.mode, lease.mode);
  EXPECT_EQ(found.created, lease.created);
  lease.mode = AttachMode::kExclusive;
  EXPECT_FALSE(FromProto(ToProto(lease)).ok());
}

// The bytes that version 0.1.0 wrote. They are never refreshed: every later version of the format
// reads them.
TEST(KeptRecord, OfTheFirstVersionIsRead) {
  const std::string path = CKPTD_SOURCE_DIR "/tests/golden/kept_checkpoint_0_1_0.binpb";
  if (std::getenv("CKPTD_WRITE_KEPT_CHECKPOINT") != nullptr) {
    ASSERT_TRUE(std::ofstream(path) << Message().SerializeAsString());
  }
  std::ifstream file(path, std::ios::binary);
  v1::KeptCheckpoint message;
  ASSERT_TRUE(message.ParseFromIstream(&file)) << path;
  ASSERT_OK_AND_ASSIGN(const KeptFromRecord kept, FromProto(message, 1, 2));
  ExpectThatOne(kept);
}

TEST(KeptRecord, OfALaterVersionIsReadWithoutWhatIsNotKnown) {
  v1::KeptCheckpoint later;
  // Field 1000 of a later version, a varint.
  ASSERT_TRUE(later.ParseFromString(Message().SerializeAsString() + "\xc0\x3e\x01"));
  ASSERT_OK_AND_ASSIGN(const KeptFromRecord kept, FromProto(later, 1, 2));
  ExpectThatOne(kept);
}

}  // namespace
}  // namespace ckptd
