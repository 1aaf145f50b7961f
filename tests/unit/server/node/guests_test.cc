// Loads of clients of another user: one daemon without its sockets, alone in its group.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/node/node.h"
#include "tests/testing/as_guest.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Host memory whose handles could be mapped for writing, as those of a GPU's.
class LikeAGpus final : public MemoryBackend {
 public:
  explicit LikeAGpus(HostMemory& memory) : memory_(memory) {}
  std::vector<HandleKind> kinds() const override { return {HandleKind::kVmmFd}; }
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended,
                                                 HandleKind) override {
    return memory_.Allocate(bytes, intended, HandleKind::kMemfd);
  }
  absl::Status Seal(Slab& slab) override { return memory_.Seal(slab); }
  absl::StatusOr<SlabHandle> Export(Slab& slab, AttachMode mode) override {
    return memory_.Export(slab, mode);
  }
  void TransferOwnership(std::unique_ptr<Slab> slab) override {
    memory_.TransferOwnership(std::move(slab));
  }
  void OnWriterRestart() override { memory_.OnWriterRestart(); }
  std::vector<uint64_t> OwnedSegments() const override { return memory_.OwnedSegments(); }
  MemoryUsage Usage() const override { return memory_.Usage(); }
  std::string tier() const override { return memory_.tier(); }

 private:
  HostMemory& memory_;
};

class GuestsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::chmod(std::filesystem::path(source_.path()).parent_path().c_str(), 0755);
    ::chmod(source_.path().c_str(), 0644);
  }
  std::unique_ptr<Node> Start() { return StartOn(*memory_); }
  std::unique_ptr<Node> StartOn(MemoryBackend& memory) {
    Node::Options options;
    options.identity.incarnation = "one";
    options.reading.threads = 1;
    options.reading.rules = rules_;
    return std::make_unique<Node>(memory, peer_memory_, std::move(options));
  }
  LoadRequest Request(std::optional<Caller> guest = std::nullopt) {
    LoadRequest request = RuleRequest("replicate:1", source_.path());
    request.guest = std::move(guest);
    return request;
  }
  // Loads and waits for the end.
  CheckpointInfo Load(const LoadRequest& request) {
    const std::string name = node_->Load(request, "", false).value().info.name;
    node_->catalog().watchers().WatchEnd(name, Soon());
    return node_->catalog().Get(name).value();
  }

  const SmallSource source_;
  const std::shared_ptr<SourceRules> rules_ = std::make_shared<SourceRules>();
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(4);
  PeerMemoryInProcess peer_memory_;
  std::unique_ptr<Node> node_ = Start();
};

TEST_F(GuestsTest, WhatTheDaemonHasLoadedServesAGuestThatMayReadIt) {
  const CheckpointInfo first = Load(Request());
  const uint64_t used = memory_->Usage().used;
  const CheckpointInfo second = Load(Request(SomeGuest()));
  EXPECT_EQ(second.state, CheckpointState::kActive) << second.failure;
  EXPECT_NE(second.name, first.name);
  EXPECT_EQ(second.served_from, first.name);
  EXPECT_EQ(second.loaded_for, SomeGuest().uid);
  EXPECT_EQ(memory_->Usage().used, used);
}

TEST_F(GuestsTest, WhatIsResidentIsNotForAGuestThatMayNotReadIt) {
  ::chmod(source_.path().c_str(), 0640);
  EXPECT_EQ(Load(Request()).state, CheckpointState::kActive);
  const CheckpointInfo refused = Load(Request(SomeGuest()));
  EXPECT_EQ(refused.state, CheckpointState::kFailed);
  EXPECT_THAT(refused.failure, FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceForbidden));
}

TEST_F(GuestsTest, AGuestFindsItsOwnLoadResident) {
  const CheckpointInfo first = Load(Request(SomeGuest()));
  ASSERT_OK_AND_ASSIGN(const auto again, node_->Load(Request(SomeGuest({7})), ""));
  EXPECT_TRUE(again.resident);
  EXPECT_EQ(again.info.name, first.name);
  Caller other = SomeGuest();
  ++other.uid;
  EXPECT_NE(Load(Request(other)).name, first.name);
}

TEST_F(GuestsTest, AGuestIsNotToldOfWhatOthersHaveLoaded) {
  const CheckpointInfo own = Load(Request());
  LoadRequest without_digests = Request(SomeGuest());
  without_digests.digests = false;
  ASSERT_OK_AND_ASSIGN(const auto reply, node_->Load(without_digests, ""));
  EXPECT_THAT(reply.differs, IsEmpty());
  node_->catalog().watchers().WatchEnd(reply.info.name, Soon());
  const auto seen = node_->catalog().List(SomeGuest());
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_EQ(seen[0].name, reply.info.name) << "a view of its own, too";
  EXPECT_THAT(node_->catalog().List(), SizeIs(1)) << "the daemon's user sees whose memory it is";
}

TEST_F(GuestsTest, AGuestTakesWhatLiesIdleAndNotWhatIsPinned) {
  LoadRequest exclusive = Request();
  exclusive.intended = AttachMode::kExclusive;
  const CheckpointInfo first = Load(exclusive);
  ASSERT_OK(node_->catalog().Pin(first.name, true));
  exclusive.guest = SomeGuest();
  const CheckpointInfo own = Load(exclusive);
  EXPECT_EQ(own.state, CheckpointState::kActive) << own.failure;
  EXPECT_THAT(own.served_from, IsEmpty());
  ASSERT_OK(node_->Unload(own.name, false));
  ASSERT_OK(node_->catalog().Pin(first.name, false));
  EXPECT_EQ(Load(exclusive).served_from, first.name);
}

TEST_F(GuestsTest, UsersShareNoMemoryThatCouldBeMappedForWriting) {
  LikeAGpus gpus(*memory_);
  node_ = StartOn(gpus);
  const CheckpointInfo own = Load(Request());
  EXPECT_THAT(Load(Request(SomeGuest())).served_from, IsEmpty());
  LoadRequest stated = Request();
  stated.layout = R"({"world_size": 1, "rules": [], "default": {}})";
  EXPECT_EQ(Load(stated).served_from, own.name) << "one user's clients do";
  node_.reset();
}

TEST_F(GuestsTest, APrivateFileThatAGuestPassesIsLoadedForItAlone) {
  ::chmod(source_.path().c_str(), 0600);
  const std::string path = "/of/the/guest.safetensors";
  LoadRequest request = Request(SomeGuest());
  request.source = path;
  const auto pass =
      rules_->passed.Add({SomeGuest().uid, ""}, {{path, OpenToPass(source_.path())}});
  EXPECT_EQ(Load(request).state, CheckpointState::kActive);
  ASSERT_OK_AND_ASSIGN(const auto again, node_->Load(request, ""));
  EXPECT_TRUE(again.resident);
  request.guest->uid += 1;
  EXPECT_EQ(Load(request).failure.code(), absl::StatusCode::kNotFound);
}

TEST_F(GuestsTest, WhatAnotherJobOfTheUserPassesUnderThePathIsAnotherCheckpoint) {
  SmallSource other;
  other.Write(1);
  const std::string path = "/of/the/guest.safetensors";
  LoadRequest request = Request(SomeGuest());
  request.source = path;
  request.job = "one";
  const auto one = rules_->passed.Add({SomeGuest().uid, "one"}, {{path, OpenToPass(source_.path())}});
  const auto two = rules_->passed.Add({SomeGuest().uid, "two"}, {{path, OpenToPass(other.path())}});
  const CheckpointInfo first = Load(request);
  request.job = "two";
  const CheckpointInfo second = Load(request);
  EXPECT_NE(second.name, first.name);
  EXPECT_EQ(BytesOf(node_->catalog(), first.name, 0), Rows(source_.a(), 1000, 0, 7));
  EXPECT_EQ(BytesOf(node_->catalog(), second.name, 0), Rows(other.a(), 1000, 0, 7));
}

TEST_F(GuestsTest, InspectingAndPlanningAskTheSame) {
  ::chmod(source_.path().c_str(), 0640);
  CallContext asker(Soon());
  EXPECT_OK(node_->Inspect(source_.path(), asker));
  asker.guest = SomeGuest();
  const auto forbidden = FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceForbidden);
  EXPECT_THAT(node_->Inspect(source_.path(), asker), forbidden);
  EXPECT_THAT(node_->Plan(Request(), asker), forbidden);
  DeviceMapRequest devices;
  devices.source = source_.path();
  EXPECT_THAT(node_->Plan(devices, asker), forbidden);
}

TEST_F(GuestsTest, RootsAreForEverybody) {
  rules_->roots = {"/somewhere/else"};
  for (const std::optional<Caller>& guest : {std::optional<Caller>(), std::optional(SomeGuest())}) {
    EXPECT_THAT(Load(Request(guest)).failure,
                FailsWith(absl::StatusCode::kPermissionDenied, reason::kSourceOutsideRoots));
  }
}

TEST_F(GuestsTest, TrainersOfEachUserHaveAKeyOfTheirOwn) {
  Caller other = SomeGuest();
  ++other.uid;
  EXPECT_EQ(node_->TrainerKey(SomeGuest()).value(), node_->TrainerKey(SomeGuest({7})).value());
  EXPECT_NE(node_->TrainerKey(SomeGuest()).value(), node_->TrainerKey(other).value());
  EXPECT_NE(node_->TrainerKey(SomeGuest()).value(), node_->TrainerKey().value());
}

}  // namespace
}  // namespace ckptd
