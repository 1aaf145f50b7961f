#include "server/catalog/catalog.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/small_memory.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr absl::StatusCode kNotFound = absl::StatusCode::kNotFound;

// That memory, which calls a hook when a slab is complete, and gives none while `refusal` is set.
class MemoryWithHook final : public MemoryBackend {
 public:
  MemoryWithHook(MemoryBackend& memory, const std::function<void()>& hook)
      : memory_(memory), hook_(hook) {}
  absl::Status refusal;

  void ReleaseStaging(Slab&) override { hook_(); }
  std::vector<HandleKind> kinds() const override { return memory_.kinds(); }
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended,
                                                 HandleKind kind) override {
    CKPTD_RETURN_IF_ERROR(refusal);
    return memory_.Allocate(bytes, intended, kind);
  }
  absl::Status Seal(Slab& slab) override { return memory_.Seal(slab); }
  absl::StatusOr<SlabHandle> Export(Slab& slab, AttachMode mode) override {
    return memory_.Export(slab, mode);
  }
  void TransferOwnership(std::unique_ptr<Slab> slab) override { memory_.TransferOwnership(std::move(slab)); }
  void OnWriterRestart() override { memory_.OnWriterRestart(); }
  std::vector<uint64_t> OwnedSegments() const override { return memory_.OwnedSegments(); }
  MemoryUsage Usage() const override { return memory_.Usage(); }
  std::string tier() const override { return memory_.tier(); }

 private:
  MemoryBackend& memory_;
  const std::function<void()>& hook_;
};

class CatalogTest : public ::testing::Test {
 protected:
  CheckpointState StateOf(const std::string& name) { return catalog_.Get(name).value().state; }

  std::unique_ptr<HostMemory> memory_ = MakeSmallMemory(2);
  Catalog catalog_{*memory_, 0, 1};
  const LoadRequest request_ = RuleRequest();
};

TEST_F(CatalogTest, BeginsACheckpointAsLoading) {
  catalog_.Begin("checkpoints/a", request_);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kLoading);
}

TEST_F(CatalogTest, PublishingMakesItActive) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kActive);
}

TEST_F(CatalogTest, TheIdentityTellsAnyOtherFileApart) {
  const auto identity = [&](const std::string& name, void (*change)(SourceFile&)) {
    PrepareCall call = CallOf(name, request_);
    CheckpointIndex index = *call.index;
    change(index.files[0]);
    call.index = std::make_shared<const CheckpointIndex>(std::move(index));
    catalog_.Begin(name, request_);
    EXPECT_OK(catalog_.eviction().Allocate(call, ShardOf(512)));
    const uint64_t shown = catalog_.Get(name).value().identity;
    catalog_.Fail(name, absl::InternalError("seen"));
    return shown;
  };
  const uint64_t usual = identity("checkpoints/a", [](SourceFile&) {});
  EXPECT_EQ(identity("checkpoints/b", [](SourceFile&) {}), usual);
  EXPECT_NE(identity("checkpoints/c", [](SourceFile& file) { ++file.bytes; }), usual);
  EXPECT_NE(identity("checkpoints/d", [](SourceFile& file) { file.host += "1"; }), usual);
  EXPECT_NE(identity("checkpoints/e", [](SourceFile& file) { file.object += "1"; }), usual);
  EXPECT_NE(identity("checkpoints/f", [](SourceFile& file) { ++file.mtime_ns; }), usual);
  EXPECT_NE(identity("checkpoints/g", [](SourceFile& file) { file.version += "1"; }), usual);
  EXPECT_NE(identity("checkpoints/h", [](SourceFile& file) { ++file.header_hash; }), usual);
}

TEST(SourceIdentity, IsOfTheFilesWhicheverHostSeesThem) {
  const SourceFile file{"/m/a", 1, "2", "3", "4", 5, 6};
  EXPECT_EQ(IdentityOf({{"/m/a", 1, "2", "3", "another", 5, 6}}), IdentityOf({file}));
  EXPECT_NE(IdentityOf({{"/m/a", 9, "2", "3", "4", 5, 6}}), IdentityOf({file}));
  EXPECT_NE(IdentityOf({{"/m/a", 1, "9", "3", "4", 5, 6}}), IdentityOf({file}));
  EXPECT_NE(IdentityOf({{"/m/a", 1, "2", "9", "4", 5, 6}}), IdentityOf({file}));
  EXPECT_NE(IdentityOf({{"/m/a", 1, "2", "3", "4", 9, 6}}), IdentityOf({file}));
  EXPECT_NE(IdentityOf({{"/m/a", 1, "2", "3", "4", 5, 9}}), IdentityOf({file}));
  EXPECT_NE(IdentityOf({file, file}), IdentityOf({file}));
}

TEST_F(CatalogTest, TheSourceIdentityIsThatOfTheFilesWhateverIsAskedOfThem) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  LoadRequest other = request_;
  other.digests = !other.digests;
  ASSERT_OK(MakeActive(catalog_, "checkpoints/b", other));
  const CheckpointInfo a = catalog_.Get("checkpoints/a").value();
  const CheckpointInfo b = catalog_.Get("checkpoints/b").value();
  EXPECT_EQ(a.source_identity, IdentityOf(CallOf("checkpoints/a", request_).index->files));
  EXPECT_EQ(a.source_identity, b.source_identity);
  EXPECT_NE(a.identity, b.identity);
}

TEST_F(CatalogTest, PublishingSealsTheMemory) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  EXPECT_TRUE(catalog_.leases().Look("checkpoints/a").value().memory->sealed());
}

TEST_F(CatalogTest, PublishingLeavesMemoryMeantForAnExclusiveClientUnsealed) {
  LoadRequest exclusive = request_;
  exclusive.intended = AttachMode::kExclusive;
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", exclusive));
  EXPECT_FALSE(catalog_.leases().Look("checkpoints/a").value().memory->sealed());
}

TEST_F(CatalogTest, ARequestWithoutDigestsIsServedByACheckpointThatHasThem) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  LoadRequest plain = request_;
  plain.digests = false;
  ASSERT_TRUE(catalog_.FindMatch(plain).has_value());
  EXPECT_EQ(catalog_.FindMatch(plain)->name, "checkpoints/a");
}

TEST_F(CatalogTest, ARequestForDigestsIsNotServedByACheckpointWithoutThem) {
  LoadRequest plain = request_;
  plain.digests = false;
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", plain));
  EXPECT_FALSE(catalog_.FindMatch(request_).has_value());
}

TEST_F(CatalogTest, PublishingAnAbortedLoadIsRefused) {
  catalog_.Begin("checkpoints/a", request_);
  ASSERT_OK(catalog_.eviction().Allocate(CallOf("checkpoints/a", request_), ShardOf(512)));
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_THAT(catalog_.Publish(CommitOf("checkpoints/a")),
              FailsWith(kNotFound, reason::kCheckpointNotFound));
}

TEST_F(CatalogTest, OneThatBeginsAnewWhileItIsPublishedIsNotPublished) {
  std::function<void()> while_published;
  MemoryWithHook memory(*memory_, while_published);
  Catalog catalog(memory, 0, 1);
  catalog.Begin("checkpoints/a", request_);
  ASSERT_OK(catalog.eviction().Allocate(CallOf("checkpoints/a", request_), ShardOf(512)));
  while_published = [&] {
    catalog.Fail("checkpoints/a", absl::AbortedError("given up"));
    catalog.Begin("checkpoints/a", request_);
  };
  EXPECT_EQ(catalog.Publish(CommitOf("checkpoints/a")).code(), kNotFound);
  EXPECT_EQ(catalog.Get("checkpoints/a").value().state, CheckpointState::kLoading);
}

TEST_F(CatalogTest, AllocatingForAnAbortedLoadIsRefusedAndKeepsNothing) {
  catalog_.Begin("checkpoints/a", request_);
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_THAT(catalog_.eviction().Allocate(CallOf("checkpoints/a", request_), ShardOf(512)),
              FailsWith(kNotFound, reason::kCheckpointNotFound));
  EXPECT_EQ(memory_->Usage().used, 0u);
}

TEST_F(CatalogTest, OfALoadThatFailedNoStatementIsKept) {
  std::weak_ptr<const RankLayout> statement;
  {
    const LoadRequest request = RankRequest(0, 1);
    statement = std::get<std::shared_ptr<const RankLayout>>(request.layout);
    catalog_.Begin("checkpoints/a", request);
  }
  EXPECT_FALSE(statement.expired());
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_TRUE(statement.expired());
  EXPECT_EQ(catalog_.Get("checkpoints/a").value().source, request_.source);
}

TEST_F(CatalogTest, FailingALoadGivesItsMemoryBack) {
  catalog_.Begin("checkpoints/a", request_);
  ASSERT_OK(catalog_.eviction().Allocate(CallOf("checkpoints/a", request_), ShardOf(512)));
  ASSERT_GT(memory_->Usage().used, 0u);
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kFailed);
  EXPECT_EQ(memory_->Usage().used, 0u);
}

TEST_F(CatalogTest, FailingAnActiveCheckpointChangesNothing) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kActive);
}

TEST_F(CatalogTest, FailAllLoadingLeavesActiveOnesAlone) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  catalog_.Begin("checkpoints/b", request_);
  catalog_.FailAllLoading(absl::InternalError("boom"));
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kActive);
  EXPECT_EQ(StateOf("checkpoints/b"), CheckpointState::kFailed);
}

TEST_F(CatalogTest, FailAllLoadingLeavesThoseAloneThatWereBegunSince) {
  const uint64_t before = catalog_.Tick();
  catalog_.Begin("checkpoints/a", request_);
  catalog_.FailAllLoading(absl::InternalError("boom"), before);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kLoading);
}

TEST_F(CatalogTest, BeginningAFailedCheckpointAgainReplacesIt) {
  catalog_.Begin("checkpoints/a", request_);
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  catalog_.Begin("checkpoints/a", request_);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kLoading);
}

TEST_F(CatalogTest, BeginningAnActiveCheckpointAgainKeepsIt) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  catalog_.Begin("checkpoints/a", request_);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kActive);
}

TEST_F(CatalogTest, ALoadThatFailedBeforeItsNameWasKnownIsFailed) {
  const uint64_t since = catalog_.Tick();
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  catalog_.Begin("checkpoints/a", request_, since);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kFailed);
  EXPECT_EQ(catalog_.Get("checkpoints/a").value().failure, absl::InternalError("boom"));
}

TEST_F(CatalogTest, ALoadThatWasUnloadedBeforeItsNameWasKnownIsFailedWithThatReason) {
  const uint64_t since = catalog_.Tick();
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  ASSERT_OK(catalog_.Unload("checkpoints/a", false));
  catalog_.Begin("checkpoints/a", request_, since);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kFailed);
  EXPECT_THAT(catalog_.Get("checkpoints/a").value().failure, Says("unloaded or evicted again"));
  catalog_.Begin("checkpoints/a", request_, catalog_.Tick());
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kLoading);
}

TEST_F(CatalogTest, ALoadThatFailedWhileItsNameWasOnItsWayStaysFailed) {
  const uint64_t since = catalog_.Tick();
  catalog_.Begin("checkpoints/a", request_);
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  catalog_.Begin("checkpoints/a", request_, since);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kFailed);
}

TEST_F(CatalogTest, AFailureOfAnEarlierAttemptDoesNotFailTheNext) {
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  catalog_.Begin("checkpoints/b", request_);
  catalog_.Fail("checkpoints/b", absl::InternalError("boom"));
  const uint64_t since = catalog_.Tick();
  catalog_.Begin("checkpoints/a", request_, since);
  catalog_.Begin("checkpoints/b", request_, since);
  EXPECT_EQ(StateOf("checkpoints/a"), CheckpointState::kLoading);
  EXPECT_EQ(StateOf("checkpoints/b"), CheckpointState::kLoading);
}

TEST_F(CatalogTest, MatchesALoadingCheckpointOfTheSameRequest) {
  catalog_.Begin("checkpoints/a", request_);
  const auto match = catalog_.FindMatch(request_);
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->name, "checkpoints/a");
  EXPECT_FALSE(match->active);
}

TEST_F(CatalogTest, MatchesAnActiveCheckpointAndGivesItsFiles) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  const auto match = catalog_.FindMatch(request_);
  ASSERT_TRUE(match.has_value());
  EXPECT_TRUE(match->active);
  EXPECT_EQ(match->files, CallOf("", request_).index->files);
}

TEST_F(CatalogTest, DoesNotMatchAFailedCheckpoint) {
  catalog_.Begin("checkpoints/a", request_);
  catalog_.Fail("checkpoints/a", absl::InternalError("boom"));
  EXPECT_FALSE(catalog_.FindMatch(request_).has_value());
}

TEST_F(CatalogTest, DoesNotMatchAnotherLayout) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  EXPECT_FALSE(catalog_.FindMatch(RuleRequest("fsdp:1")).has_value());
}

TEST_F(CatalogTest, PrivateAndSharedRequestsMatchTheSameCheckpoint) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  LoadRequest other = request_;
  other.intended = AttachMode::kPrivate;
  EXPECT_TRUE(catalog_.FindMatch(other).has_value());
}

TEST_F(CatalogTest, AKindOfHandleThatTheTierHasByItselfNeedNotBeNamed) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  LoadRequest other = request_;
  other.kind = HandleKind::kMemfd;
  EXPECT_TRUE(catalog_.FindMatch(other).has_value());
  EXPECT_EQ(catalog_.Get("checkpoints/a")->kind, HandleKind::kMemfd);
}

TEST_F(CatalogTest, AKindOfHandleThatTheMemoryHasNotIsRefused) {
  LoadRequest other = request_;
  other.kind = HandleKind::kCudaIpc;
  EXPECT_THAT(catalog_.eviction().CheckKind(other),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
  catalog_.Begin("checkpoints/a", other);
  EXPECT_THAT(catalog_.eviction().Allocate(CallOf("checkpoints/a", other), ShardOf(512)),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kHandleKind));
}

TEST_F(CatalogTest, AnExclusiveRequestDoesNotMatchMemoryThatWasLent) {
  LoadRequest exclusive = request_;
  exclusive.intended = AttachMode::kExclusive;
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", exclusive));
  ASSERT_TRUE(catalog_.FindMatch(exclusive).has_value());
  ASSERT_OK(catalog_.leases().Look("checkpoints/a").value().memory->Export(AttachMode::kShared));
  EXPECT_FALSE(catalog_.FindMatch(exclusive).has_value());
}

TEST_F(CatalogTest, ANearMissNamesEveryFieldThatDiffers) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  LoadRequest other = RuleRequest("fsdp:1");
  other.policy.cast_to = Dtype::kBF16;
  other.intended = AttachMode::kExclusive;
  other.kind = HandleKind::kCudaIpc;
  other.digests = false;
  EXPECT_THAT(catalog_.NearMiss(other),
              ::testing::ElementsAre("layout", "dtype_policy", "intended_mode", "handle_kind",
                                     "digests"));
}

TEST_F(CatalogTest, ANearMissOfAnEqualRequestIsAboutTheFiles) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  EXPECT_THAT(catalog_.NearMiss(request_), ::testing::ElementsAre("files"));
}

TEST_F(CatalogTest, AnotherSourceIsNoNearMiss) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  EXPECT_THAT(catalog_.NearMiss(RuleRequest("replicate:1", "/models/other")),
              ::testing::IsEmpty());
}

TEST_F(CatalogTest, WhatALoadKeepsFromBeingDoneIsSaidAsWhatItWas) {
  catalog_.Begin("checkpoints/a", request_);
  const auto ends_with = ::testing::HasSubstr(
      "wait until it has ended, `ckptctl watch checkpoints/a` follows it");
  const auto expect = [&](const absl::Status& status, const std::string& start) {
    EXPECT_THAT(status, FailsWith(absl::StatusCode::kFailedPrecondition, reason::kNotActive));
    EXPECT_THAT(MessageOf(status),
                ::testing::StartsWith(start + " checkpoints/a: it is LOADING ("));
    EXPECT_THAT(MessageOf(status), ends_with);
  };
  expect(catalog_.Unload("checkpoints/a", false).status(), "unloading");
  EXPECT_THAT(catalog_.Unload("checkpoints/a", false), Says("; or force it, which cancels the load"));
  expect(catalog_.leases().Look("checkpoints/a").status(), "verifying");
  expect(catalog_.leases().Table("checkpoints/a").status(), "listing the tensors of");
  expect(catalog_.leases().Hold("checkpoints/a", AttachMode::kShared).status(), "acquiring");
}

TEST_F(CatalogTest, EvictsTheLeastRecentlyUsedCheckpointForAnother) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/b", request_));
  const uint64_t generation = catalog_.leases().Hold("checkpoints/a", AttachMode::kShared)->generation;
  catalog_.leases().Release("checkpoints/a", generation);
  ASSERT_OK(MakeActive(catalog_, "checkpoints/c", request_));
  EXPECT_OK(catalog_.Get("checkpoints/a"));
  EXPECT_THAT(catalog_.Get("checkpoints/b"), FailsWith(kNotFound, reason::kCheckpointNotFound));
}

TEST_F(CatalogTest, DoesNotEvictAPinnedCheckpoint) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/b", request_));
  ASSERT_OK(catalog_.Pin("checkpoints/a", true));
  ASSERT_OK(catalog_.Pin("checkpoints/b", true));
  ASSERT_OK(catalog_.Pin("checkpoints/b", false));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/c", request_));
  EXPECT_OK(catalog_.Get("checkpoints/a"));
}

TEST_F(CatalogTest, DoesNotEvictALeasedCheckpoint) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  ASSERT_OK(catalog_.leases().Hold("checkpoints/a", AttachMode::kShared));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/b", request_));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/c", request_));
  EXPECT_OK(catalog_.Get("checkpoints/a"));
}

TEST_F(CatalogTest, RefusesWithTheNumbersWhenNothingCanBeEvicted) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/b", request_));
  ASSERT_OK(catalog_.leases().Hold("checkpoints/a", AttachMode::kShared));
  ASSERT_OK(catalog_.Pin("checkpoints/b", true));
  const absl::Status refused = MakeActive(catalog_, "checkpoints/c", request_);
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_THAT(refused, Says("2097152 bytes are leased, 2097152 pinned, 0 loading"));
}

TEST_F(CatalogTest, EvictsNothingForWhatCannotFitBesideMemoryThatWasUnloadedWhileInUse) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  ASSERT_OK_AND_ASSIGN(const ShardLeases::Held held,
                       catalog_.leases().Hold("checkpoints/a", AttachMode::kShared));
  ASSERT_OK(catalog_.Unload("checkpoints/a", true));
  ASSERT_OK(MakeActive(catalog_, "checkpoints/b", request_));
  EXPECT_FALSE(MakeActive(catalog_, "checkpoints/c", request_, 2 * kSmallSegment).ok());
  EXPECT_OK(catalog_.Get("checkpoints/b"));
}

TEST_F(CatalogTest, EvictsNothingForMemoryOfTheHostThatADeviceNeeds) {
  const std::function<void()> nothing = [] {};
  MemoryWithHook memory(*memory_, nothing);
  Catalog catalog(memory, 0, 1);
  ASSERT_OK(MakeActive(catalog, "checkpoints/a", request_));
  const auto refused = [&](const Facts& facts) {
    memory.refusal = MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                               "pinning 8 MiB", facts);
    return MakeActive(catalog, "checkpoints/b", request_);
  };
  EXPECT_THAT(refused({{"host_bytes", "8388608"}}),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_OK(catalog.Get("checkpoints/a"));
  EXPECT_FALSE(refused({}).ok());
  EXPECT_FALSE(catalog.Get("checkpoints/a").ok()) << "memory of shards would have helped";
}

TEST_F(CatalogTest, ARankThatReceivesNothingNeedsNoMemory) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_, 0));
  EXPECT_EQ(memory_->Usage().used, 0u);
}

TEST_F(CatalogTest, ForgetsTheOldestOfManyFailedCheckpoints) {
  for (int i = 0; i < 40; ++i) {
    const std::string name = "checkpoints/" + std::to_string(i);
    catalog_.Begin(name, request_);
    catalog_.Fail(name, absl::InternalError("boom"));
  }
  catalog_.Begin("checkpoints/last", request_);
  EXPECT_EQ(catalog_.List().size(), 33u);
  EXPECT_THAT(catalog_.Get("checkpoints/0"), FailsWith(kNotFound, reason::kCheckpointNotFound));
  EXPECT_OK(catalog_.Get("checkpoints/39"));
}

TEST_F(CatalogTest, TellsALeaderOnlyOfActiveCheckpoints) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  catalog_.Begin("checkpoints/b", request_);
  const auto residents = catalog_.Residents();
  ASSERT_EQ(residents.size(), 1u);
  EXPECT_EQ(residents[0].name, "checkpoints/a");
  EXPECT_EQ(residents[0].load_key, LoadKey(request_));
  EXPECT_THAT(residents[0].request_digests, ::testing::ElementsAre(RequestDigest(request_)));
}

TEST_F(CatalogTest, HasAnActiveShardOnlyWithTheSamePlan) {
  ASSERT_OK(MakeActive(catalog_, "checkpoints/a", request_));
  EXPECT_TRUE(catalog_.HasActive("checkpoints/a", 1));
  EXPECT_FALSE(catalog_.HasActive("checkpoints/a", 2));
}

}  // namespace
}  // namespace ckptd
