// A load that is served from the memory of another: one daemon without its sockets, alone.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/node/node.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class ViewsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Node> Start() {
    Node::Options options;
    options.identity.incarnation = "one";
    options.reading.threads = 1;
    return std::make_unique<Node>(*memory_, peer_memory_, std::move(options));
  }
  LoadRequest Ruled() { return RuleRequest("fsdp:1", source_.path()); }
  // A trainer's own statement that it wants these whole.
  LoadRequest Stated(std::initializer_list<const char*> names) {
    RankLayout layout;
    layout.shardings.resize(1);
    for (const char* name : names) layout.targets.emplace_back().name = name;
    LoadRequest request = RuleRequest("", source_.path());
    request.layout = std::make_shared<const RankLayout>(std::move(layout));
    return request;
  }
  CheckpointInfo Load(const LoadRequest& request) {
    const std::string name = node_->Load(request, "", false).value().info.name;
    node_->catalog().watchers().WatchEnd(name, Soon());
    const CheckpointInfo info = node_->catalog().Get(name).value();
    EXPECT_EQ(info.state, CheckpointState::kActive) << info.failure;
    return info;
  }
  uint64_t Used() { return memory_->Usage().used; }

  SmallSource source_;
  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(4);
  PeerMemoryInProcess peer_memory_;
  std::unique_ptr<Node> node_ = Start();
};

TEST_F(ViewsTest, WhatIsResidentByRuleServesWhatATrainerStates) {
  const CheckpointInfo ruled = Load(Ruled());
  const uint64_t used = Used();
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  EXPECT_EQ(stated.served_from, ruled.name);
  EXPECT_EQ(stated.progress.read.storage_bytes, 0u);
  EXPECT_EQ(Used(), used);
  EXPECT_EQ(BytesOf(node_->catalog(), stated.name, 0), Rows(source_.a(), 1000, 0, 7));
  EXPECT_EQ(BytesOf(node_->catalog(), stated.name, 1), Rows(source_.b(), 300, 0, 5));
  EXPECT_THAT(node_->Verify(stated.name, Soon()).value().mismatched, IsEmpty());
}

TEST_F(ViewsTest, VerifyingAPartOfItsOwnerLooksAtThatPart) {
  const std::string owner = Load(Ruled()).name;
  const CheckpointInfo view = Load(Stated({"b"}));
  ASSERT_EQ(view.served_from, owner);
  const Verification verified = node_->Verify(view.name, Soon()).value();
  EXPECT_THAT(verified.mismatched, IsEmpty());
  EXPECT_EQ(verified.tensors, 1u);
}

TEST_F(ViewsTest, ALoadOfNothingIsNoViewOfAnything) {
  Load(Ruled());
  const char* const nothing = R"({"world_size": 1, "rules": [], "default": {"drop": true}})";
  EXPECT_EQ(Load(RuleRequest(nothing, source_.path())).served_from, "");
}

TEST_F(ViewsTest, WhatATrainerHasLoadedServesARule) {
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  EXPECT_EQ(Load(Ruled()).served_from, stated.name);
}

TEST_F(ViewsTest, AViewHasTheTableOfWhoeverAsked) {
  Load(Ruled());
  const CheckpointInfo stated = Load(Stated({"b"}));
  const auto shard = node_->catalog().leases().Table(stated.name).value();
  ASSERT_THAT(shard->plan.tensors, SizeIs(1));
  EXPECT_EQ(BytesOf(node_->catalog(), stated.name, 0), Rows(source_.b(), 300, 0, 5));
  EXPECT_THAT(shard->unexpected, ::testing::ElementsAre("a"));
  EXPECT_EQ(stated.tensor_count, 1u);
}

TEST_F(ViewsTest, LessThanWhatIsAskedForServesNothing) {
  Load(Stated({"a"}));
  const CheckpointInfo ruled = Load(Ruled());
  EXPECT_THAT(ruled.served_from, IsEmpty());
  EXPECT_EQ(BytesOf(node_->catalog(), ruled.name, 1), Rows(source_.b(), 300, 0, 5));
}

TEST_F(ViewsTest, NamesThatNobodyAsksForAreRefusedAsIfNothingWereResident) {
  Load(Ruled());
  LoadRequest request = Stated({"a"});
  RankLayout strict = *std::get<std::shared_ptr<const RankLayout>>(request.layout);
  strict.refuse_unexpected = true;
  request.layout = std::make_shared<const RankLayout>(std::move(strict));
  const std::string name = node_->Load(request, "").value().info.name;
  node_->catalog().watchers().WatchEnd(name, Soon());
  EXPECT_THAT(node_->catalog().Get(name).value().failure,
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kUnexpectedTensors));
}

TEST_F(ViewsTest, FilesThatHaveChangedServeNothing) {
  Load(Ruled());
  source_.Write(1);
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  EXPECT_THAT(stated.served_from, IsEmpty());
  EXPECT_EQ(BytesOf(node_->catalog(), stated.name, 0), Rows(source_.a(), 1000, 0, 7));
}

TEST_F(ViewsTest, DigestsThatAreWantedMustBeThere) {
  LoadRequest without = Ruled();
  without.digests = false;
  Load(without);
  EXPECT_THAT(Load(Stated({"a", "b"})).served_from, IsEmpty());
}

TEST_F(ViewsTest, MemoryForReadersIsNotServedToWhoeverTakesItOver) {
  Load(Ruled());
  LoadRequest request = Stated({"a", "b"});
  request.intended = AttachMode::kExclusive;
  EXPECT_THAT(Load(request).served_from, IsEmpty());
}

TEST_F(ViewsTest, AnEqualRequestFindsTheViewAtOnce) {
  Load(Ruled());
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  ASSERT_OK_AND_ASSIGN(const Node::LoadReply again, node_->Load(Stated({"a", "b"}), ""));
  EXPECT_TRUE(again.resident);
  EXPECT_EQ(again.info.name, stated.name);
}

TEST_F(ViewsTest, IsNotListedBesideItsOwnerButWhoeverKnowsItsNameFindsIt) {
  const CheckpointInfo ruled = Load(Ruled());
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  ASSERT_THAT(node_->catalog().List(), SizeIs(1));
  EXPECT_EQ(node_->catalog().List()[0].name, ruled.name);
  EXPECT_OK(node_->catalog().Get(stated.name));
}

TEST_F(ViewsTest, ALeaseOnItCountsOnItsOwner) {
  const CheckpointInfo ruled = Load(Ruled());
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  ASSERT_OK_AND_ASSIGN(const LeaseTable::Ticket ticket,
                       node_->leases().Open(stated.name, AttachMode::kPrivate));
  EXPECT_EQ(node_->catalog().Get(ruled.name).value().leases, 1u);
  EXPECT_EQ(node_->catalog().Get(stated.name).value().leases, 1u);
  EXPECT_THAT(node_->catalog().Unload(ruled.name, false),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kLeased));
  EXPECT_EQ(node_->leases().List()[0].checkpoint, ruled.name);
  ASSERT_OK(node_->leases().Release(ticket.lease));
  EXPECT_EQ(node_->catalog().Get(ruled.name).value().leases, 0u);
}

TEST_F(ViewsTest, IsPinnedWithItsOwner) {
  const CheckpointInfo ruled = Load(Ruled());
  EXPECT_TRUE(node_->catalog().Pin(Load(Stated({"a", "b"})).name, true).value().pinned);
  EXPECT_TRUE(node_->catalog().Get(ruled.name).value().pinned);
}

TEST_F(ViewsTest, IsUnloadedWithItsOwnerByEitherName) {
  const CheckpointInfo ruled = Load(Ruled());
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  EXPECT_GT(node_->Unload(stated.name, false).value().freed_bytes, 0u);
  for (const std::string& name : {ruled.name, stated.name}) {
    EXPECT_THAT(node_->catalog().Get(name),
                FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
  }
  EXPECT_EQ(Used(), 0u);
  EXPECT_THAT(Load(Ruled()).served_from, IsEmpty());
}

TEST_F(ViewsTest, IsEvictedWithItsOwner) {
  Load(Ruled());
  const CheckpointInfo stated = Load(Stated({"a", "b"}));
  EXPECT_OK(node_->catalog().eviction().MakeRoom(3 * kSmallSegment, absl::ResourceExhaustedError("full")));
  EXPECT_THAT(node_->catalog().Get(stated.name),
              FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
  EXPECT_EQ(Used(), 0u);
}

TEST_F(ViewsTest, IsTakenWithItsOwner) {
  LoadRequest ruled = Ruled();
  LoadRequest stated = Stated({"a", "b"});
  ruled.intended = stated.intended = AttachMode::kExclusive;
  const std::string owner = Load(ruled).name;
  const CheckpointInfo view = Load(stated);
  ASSERT_EQ(view.served_from, owner);
  ASSERT_OK_AND_ASSIGN(const LeaseTable::Ticket ticket,
                       node_->leases().Open(view.name, AttachMode::kExclusive));
  ASSERT_OK(node_->leases().Redeem(ticket.token, 1, 1));
  node_->leases().HandedOver(ticket.lease);
  for (const std::string& name : {owner, view.name}) {
    EXPECT_EQ(node_->catalog().Get(name).value().state, CheckpointState::kTaken);
  }
}

TEST_F(ViewsTest, WhoTakesMemoryOverIsGivenNeitherWhatIsKeptForAnotherNorMoreThanWasAsked) {
  LoadRequest ruled = Ruled();
  LoadRequest part = Stated({"a"});
  LoadRequest stated = Stated({"a", "b"});
  ruled.intended = part.intended = stated.intended = AttachMode::kExclusive;
  const std::string owner = Load(ruled).name;
  EXPECT_THAT(Load(part).served_from, IsEmpty());
  ASSERT_TRUE(node_->catalog().leases().KeepFor(owner, "its load"));
  EXPECT_THAT(Load(stated).served_from, IsEmpty());
}

TEST_F(ViewsTest, WhatWasLoadedForNobodyServesWhoTakesItOver) {
  LoadRequest ruled = Ruled();
  LoadRequest stated = Stated({"a", "b"});
  ruled.intended = stated.intended = AttachMode::kExclusive;
  const std::string owner = Load(ruled).name;
  ASSERT_TRUE(node_->catalog().leases().KeepFor(owner, ""));
  EXPECT_EQ(Load(stated).served_from, owner);
}

// The bound is 32.
TEST_F(ViewsTest, OfManyTheLeastRecentlyUsedIsForgotten) {
  const std::string owner = Load(Ruled()).name;
  std::vector<std::string> names;
  for (int i = 0; i < 33; ++i) {
    LoadRequest request = Stated({"b"});
    RankLayout layout = *std::get<std::shared_ptr<const RankLayout>>(request.layout);
    layout.targets[0].aliases = {"alias " + std::to_string(i)};
    request.layout = std::make_shared<const RankLayout>(std::move(layout));
    names.push_back(Load(request).name);
    ASSERT_EQ(node_->catalog().Get(names.back()).value().served_from, owner);
    // Who is lent the first one uses it.
    const auto held = node_->catalog().leases().Hold(names[0], AttachMode::kShared).value();
    node_->catalog().leases().Release(held.name, held.generation);
  }
  EXPECT_OK(node_->catalog().Get(names[0]));
  EXPECT_THAT(node_->catalog().Get(names[1]),
              FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
  EXPECT_OK(node_->catalog().Get(names[2]));
}

TEST_F(ViewsTest, ALeaderHearsOfItAsOfAnyOther) {
  const std::string owner = Load(Ruled()).name;
  const std::string view = Load(Stated({"a", "b"})).name;
  std::vector<std::string> names;
  for (const ResidentCheckpoint& one : node_->catalog().Residents()) names.push_back(one.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(owner, view));
}

}  // namespace
}  // namespace ckptd
