// Whole loads over a group in one process.
#include "server/load/load_runner.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "tests/testing/core_values.h"
#include "tests/testing/idle_comms.h"
#include "tests/testing/load_runner_fixture.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

TEST_F(LoadRunnerTest, RanksThatHoldTheirShardAreToldWhenTheOthersDo) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  ASSERT_OK(group_.rank(2).catalog.Unload(kName, true));
  group_.rank(0).catalog.BeginFilling(kName, group_.rank(0).catalog.Tick());
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_EQ(Info(0).state, CheckpointState::kActive);
  EXPECT_EQ(Info(2).state, CheckpointState::kActive);
  EXPECT_EQ(group_.rank(0).link->prepared(), 1);
}

TEST_F(LoadRunnerTest, ARankThatLetsGoOfItsShardMeanwhileFailsTheLoadThatFillsAnother) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  ASSERT_OK(group_.rank(2).catalog.Unload(kName, true));
  group_.rank(2).link->on_commit = [this] {
    Catalog& other = group_.rank(1).catalog;
    other.FailAllLoading(absl::UnavailableError("rank 0 did not answer for a while"));
    return other.Unload(kName, false).status();
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kNotFound, reason::kCheckpointNotFound));
}

TEST_F(LoadRunnerTest, EveryRankGetsItsRows) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  const std::vector<std::pair<uint64_t, uint64_t>> rows_a = {{0, 3}, {3, 6}, {6, 7}};
  const std::vector<std::pair<uint64_t, uint64_t>> rows_b = {{0, 2}, {2, 4}, {4, 5}};
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const Catalog& catalog = group_.rank(rank).catalog;
    EXPECT_EQ(BytesOf(catalog, kName, 0),
              Rows(source_.a(), 1000, rows_a[rank].first, rows_a[rank].second));
    EXPECT_EQ(BytesOf(catalog, kName, 1),
              Rows(source_.b(), 300, rows_b[rank].first, rows_b[rank].second));
  }
}

TEST_F(LoadRunnerTest, DigestsAreThoseOfTheBytes) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    const Catalog& catalog = group_.rank(rank).catalog;
    EXPECT_THAT(catalog.leases().Look(kName).value().shard->digests,
                ElementsAre(TensorDigest(BytesOf(catalog, kName, 0)),
                            TensorDigest(BytesOf(catalog, kName, 1))));
  }
}

TEST_F(LoadRunnerTest, ALoadWithoutDigestsHasNone) {
  ReadyLoad load = ByRules("fsdp:3");
  load.request.digests = false;
  ASSERT_OK(Run(load).status);
  EXPECT_TRUE(group_.rank(1).catalog.leases().Look(kName).value().shard->digests.empty());
}

TEST_F(LoadRunnerTest, StorageIsReadOnceHoweverManyRanksNeedIt) {
  ASSERT_OK(Run(ByRules("replicate:3")).status);
  EXPECT_EQ(Info(0).progress.read.storage_bytes, kAllBytes);
  EXPECT_EQ(Info(2).progress.bytes_done, 3 * kAllBytes);
  EXPECT_EQ(Info(2).progress.sent_bytes, 2 * kAllBytes);
}

TEST_F(LoadRunnerTest, AllRanksHoldTheShardAfterwards) {
  const LoadOutcome outcome = Run(ByRules("fsdp:3"));
  EXPECT_THAT(outcome.holders, ElementsAre(0, 1, 2));
  ASSERT_EQ(outcome.files.size(), 1u);
  EXPECT_EQ(outcome.files[0].path, source_.path());
}

TEST_F(LoadRunnerTest, AllRanksAgreeOnThePlan) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_NE(Info(0).plan_digest, 0u);
  EXPECT_EQ(Info(1).plan_digest, Info(0).plan_digest);
  EXPECT_EQ(Info(1).identity, Info(0).identity);
}

TEST_F(LoadRunnerTest, EachRankGetsWhatItStated) {
  ASSERT_OK(Run(Stated({"a", "b", "a"})).status);
  EXPECT_EQ(BytesOf(group_.rank(0).catalog, kName, 0), Rows(source_.a(), 1000, 0, 7));
  EXPECT_EQ(BytesOf(group_.rank(1).catalog, kName, 0), Rows(source_.b(), 300, 0, 5));
  EXPECT_EQ(Info(0).progress.read.storage_bytes, kAllBytes);
}

TEST_F(LoadRunnerTest, ARankThatStatesNothingIsLeftAlone) {
  ASSERT_OK(Run(Stated({"a", "b", "a"})).status);
  ASSERT_OK(group_.rank(1).catalog.Unload(kName, false));
  const LoadOutcome outcome = Run(Stated({"", "b", ""}));
  ASSERT_OK(outcome.status);
  EXPECT_THAT(outcome.holders, ElementsAre(1));
  EXPECT_EQ(Info(1).progress.read.storage_bytes, SmallSource::kBytesB);
  EXPECT_EQ(group_.rank(2).link->prepared(), 1);
}

TEST_F(LoadRunnerTest, RanksThatAreTakenForHoldersAndAreNoneAreFoundBeforeAnythingBegins) {
  ASSERT_OK(Run(Stated({"a", "b", "a"})).status);
  ASSERT_OK(group_.rank(1).catalog.Unload(kName, false));
  ASSERT_OK(group_.rank(2).catalog.Unload(kName, false));
  const LoadOutcome outcome = Run(Stated({"", "b", ""}));
  ASSERT_OK(outcome.status);
  EXPECT_THAT(outcome.lost, ElementsAre(2));
  EXPECT_THAT(outcome.holders, ElementsAre());
  EXPECT_TRUE(group_.rank(0).link->aborts().empty());
}

TEST_F(LoadRunnerTest, RanksThatHoldTheirShardAreNotFilledAgain) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  ASSERT_OK(group_.rank(1).catalog.Unload(kName, false));
  const LoadOutcome outcome = Run(ByRules("fsdp:3"));
  ASSERT_OK(outcome.status);
  EXPECT_THAT(outcome.holders, ElementsAre(0, 1, 2));
  EXPECT_EQ(group_.rank(2).link->prepared(), 1);
  EXPECT_EQ(Info(1).progress.read.storage_bytes, 3 * 1000u + 2 * 300u);
  EXPECT_EQ(BytesOf(group_.rank(1).catalog, kName, 0), Rows(source_.a(), 1000, 3, 6));
}

TEST_F(LoadRunnerTest, APadTailIsZero) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  const ShardLeases::Held held = group_.rank(2).catalog.leases().Look(kName).value();
  const PlannedTensor& tensor = held.shard->plan.tensors[0];
  ASSERT_GE(held.shard->plan.slab_bytes, tensor.offset + tensor.bytes + 24);
  const std::span<std::byte> slab = held.memory->View().segments[0];
  for (const std::byte byte : slab.subspan(tensor.offset + tensor.bytes, 24)) {
    EXPECT_EQ(byte, std::byte{0});
  }
}

TEST_F(LoadRunnerTest, ARanksRefusalToPrepareReachesAllWithItsReason) {
  group_.rank(2).link->on_prepare = [] {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory, "too small");
  };
  const LoadOutcome outcome = Run(ByRules("fsdp:3"));
  EXPECT_THAT(outcome.status, Says("rank 2: too small"));
  EXPECT_EQ(FactsOf(outcome.status).at("rank"), "2");
  EXPECT_TRUE(outcome.holders.empty());
  ExpectAbortedEverywhere(absl::StatusCode::kResourceExhausted, reason::kNoMemory);
}

TEST_F(LoadRunnerTest, OfSeveralErrorsTheOneIsToldThatFollowsFromNoOther) {
  group_.rank(1).link->on_prepare = [] {
    return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed, "a peer let go");
  };
  group_.rank(2).link->on_prepare = [] {
    return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "an Xid");
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status, Says("rank 2: an Xid"));
}

TEST_F(LoadRunnerTest, ARankThatComputesAnotherPlanFailsTheLoad) {
  ReadyLoad load = Stated({"a", "a", "a"});
  group_.rank(1).link->on_prepare = [] {
    return MakeError(absl::StatusCode::kInternal, reason::kPlanMismatch, "my plan differs");
  };
  EXPECT_THAT(Run(load).status, FailsWith(absl::StatusCode::kInternal, reason::kPlanMismatch));
}

TEST_F(LoadRunnerTest, ARanksFailureToCommitReachesTheOthers) {
  group_.rank(1).link->on_commit = [] {
    return MakeError(absl::StatusCode::kInternal, reason::kCoverage, "a byte is missing");
  };
  const LoadOutcome outcome = Run(ByRules("fsdp:3"));
  EXPECT_THAT(outcome.status, FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
  EXPECT_THAT(group_.rank(2).link->aborts().at(0), Says("rank 1: a byte is missing"));
  EXPECT_EQ(Info(1).state, CheckpointState::kFailed);
  EXPECT_EQ(outcome.holders.count(1), 0u);
}

TEST_F(LoadRunnerTest, AStreamThatCannotBeOpenedAbortsTheLoad) {
  group_.rank(1).link->on_execute = [] { return absl::InternalError("no stream"); };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status, Says("rank 1: no stream"));
  ExpectAbortedEverywhere(absl::StatusCode::kInternal, "INTERNAL");
}

TEST_F(LoadRunnerTest, AStreamThatBreaksAbortsTheLoad) {
  group_.rank(1).link->on_finish = [] { return RankLost(1, "its stream broke"); };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  ExpectAbortedEverywhere(absl::StatusCode::kUnavailable, reason::kRankLost);
}

TEST_F(LoadRunnerTest, ARankThatIsLostLeavesTheGroup) {
  group_.rank(1).link->on_finish = [] { return RankLost(1, "its stream broke"); };
  Run(ByRules("fsdp:3"));
  EXPECT_THAT(group_.membership().MissingRanks(), ElementsAre(1));
}

TEST_F(LoadRunnerTest, ARankThatWasLostAndHasJoinedAnewStaysInTheGroup) {
  group_.rank(1).link->on_finish = [this] {
    group_.Drop(1);
    group_.Join(1);
    return RankLost(1, "its stream broke");
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_THAT(group_.membership().MissingRanks(), ElementsAre());
}

TEST_F(LoadRunnerTest, ARankThatHearsOfAChangeFirstIsNotBlamedForIt) {
  group_.rank(1).link->on_prepare = [this] {
    group_.Drop(2);
    return MakeError(absl::StatusCode::kAborted, reason::kEpochChanged, "a call of an old epoch");
  };
  const absl::Status status = Run(ByRules("fsdp:3")).status;
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_EQ(FactsOf(status).at("rank"), "2");
}

TEST_F(LoadRunnerTest, AChangeOfTheGroupInTheMiddleInterruptsTheTransfer) {
  group_.rank(1).link->on_execute = [this] {
    group_.Drop(2);
    return absl::OkStatus();
  };
  const LoadOutcome outcome = Run(ByRules("fsdp:3"));
  EXPECT_THAT(outcome.status, FailsWith(absl::StatusCode::kUnavailable, reason::kRankLost));
  EXPECT_THAT(outcome.status, Says("its cable was cut"));
  ExpectAbortedEverywhere(absl::StatusCode::kUnavailable, reason::kRankLost);
}

TEST_F(LoadRunnerTest, AChangeOfTheGroupBeforeTheCommitPublishesNothing) {
  group_.rank(2).link->on_finish = [this] {
    group_.Drop(1);
    return absl::OkStatus();
  };
  EXPECT_TRUE(Run(ByRules("fsdp:3")).holders.empty());
  ExpectAbortedEverywhere(absl::StatusCode::kUnavailable, reason::kRankLost);
}

TEST_F(LoadRunnerTest, APassedDeadlineFailsTheLoadForAll) {
  ReadyLoad load = ByRules("fsdp:3");
  load.deadline = Clock::now() - std::chrono::seconds(1);
  EXPECT_THAT(Run(load).status,
              FailsWith(absl::StatusCode::kDeadlineExceeded, reason::kDeadline));
  ExpectAbortedEverywhere(absl::StatusCode::kDeadlineExceeded, reason::kDeadline);
}

TEST_F(LoadRunnerTest, ALeaderThatStopsAbortsTheLoad) {
  group_.rank(1).link->on_execute = [this] {
    stopping_ = true;
    return absl::OkStatus();
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kUnavailable, reason::kDraining));
}

TEST_F(LoadRunnerTest, ALeaderThatStopsMapsNoFurtherRank) {
  std::vector<uint32_t> mapped;
  group_.peer_memory().on_map = [&](uint32_t rank) {
    mapped.push_back(rank);
    stopping_ = true;
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kUnavailable, reason::kDraining));
  EXPECT_THAT(mapped, ElementsAre(1));
}

TEST_F(LoadRunnerTest, AMissingSourceReachesAllRanks) {
  ReadyLoad load = ByRules("fsdp:3");
  load.request.source = "/nonexistent/model.safetensors";
  EXPECT_THAT(Run(load).status,
              FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  ExpectAbortedEverywhere(absl::StatusCode::kNotFound, reason::kSourceNotFound);
}

TEST_F(LoadRunnerTest, ATensorThatIsNotThereNamesTheRankThatWantsIt) {
  const absl::Status status = Run(Stated({"a", "nonsense", "a"})).status;
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kNotFound, reason::kTensorNotFound));
  EXPECT_EQ(FactsOf(status).at("rank"), "1");
}

ReadyLoad Strict(ReadyLoad load) {
  for (auto& shared : load.layouts) {
    if (shared == nullptr) continue;
    RankLayout layout = *shared;
    layout.refuse_unexpected = true;
    shared = std::make_shared<const RankLayout>(std::move(layout));
  }
  return load;
}

TEST_F(LoadRunnerTest, ATensorThatNoRankWantsFailsAStrictLoadForAll) {
  EXPECT_THAT(Run(Strict(Stated({"a", "a", "a"}))).status,
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kUnexpectedTensors));
  ExpectAbortedEverywhere(absl::StatusCode::kInvalidArgument, reason::kUnexpectedTensors);
}

TEST_F(LoadRunnerTest, RanksOfAStrictLoadNeedOnlyNameEverythingTogether) {
  ASSERT_OK(Run(Strict(Stated({"a", "b", "a"}))).status);
}

TEST_F(LoadRunnerTest, ARankThatReloadsAloneIsNotAskedForTheTensorsOfOthers) {
  ASSERT_OK(Run(Strict(Stated({"a", "b", "a"}))).status);
  ASSERT_OK(group_.rank(1).catalog.Unload(kName, false));
  ASSERT_OK(Run(Strict(Stated({"", "b", ""}))).status);
}

TEST_F(LoadRunnerTest, AShardKnowsWhatItsRankDidNotName) {
  ASSERT_OK(Run(Stated({"a", "b", "a"})).status);
  EXPECT_THAT(group_.rank(0).catalog.leases().Look(kName).value().shard->unexpected, ElementsAre("b"));
  EXPECT_THAT(group_.rank(1).catalog.leases().Look(kName).value().shard->unexpected, ElementsAre("a"));
}

TEST_F(LoadRunnerTest, FilesThatOtherRanksWereNotLoadedFromAreRefused) {
  ReadyLoad load = ByRules("fsdp:3");
  load.files = {{source_.path(), 1, "3", "5", "2", 4}};
  EXPECT_THAT(Run(load).status, FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST_F(LoadRunnerTest, AFileThatChangesMeanwhileFailsTheLoad) {
  group_.rank(1).link->on_execute = [this] {
    source_.Write(1);
    return absl::OkStatus();
  };
  EXPECT_THAT(Run(ByRules("fsdp:3")).status,
              FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
  // What is mapped stays allocated.
  EXPECT_THAT(group_.peer_memory().kept(1), testing::IsEmpty());
}

TEST_F(LoadRunnerTest, RanksThatHaveTheirsHoldItThoughAnotherOneFails) {
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  ASSERT_OK(group_.rank(1).catalog.Unload(kName, false));
  group_.rank(1).link->on_prepare = [] { return absl::InternalError("boom"); };
  EXPECT_THAT(Run(ByRules("fsdp:3")).holders, ElementsAre(0, 2));
}

TEST_F(LoadRunnerTest, ACallToPrepareThatTheAbortOvertookTakesNoMemory) {
  RankInProcess& rank = group_.rank(1);
  const uint64_t since = rank.catalog.Tick();
  rank.side.Abort(kName, absl::InternalError("boom"));
  EXPECT_FALSE(rank.side.Prepare(CallOf(kName, RuleRequest("replicate:3")), since).ok());
  EXPECT_EQ(Info(1).state, CheckpointState::kFailed);
  EXPECT_EQ(rank.memory->Usage().used, 0u);
}

// Memory of the host cannot be sent from: the load fails when it begins to.
TEST_F(LoadRunnerTest, AllHearThatItHasFailedBeforeTheCommunicatorIsGivenUp) {
  IdleComms comms;
  CommunicatorCache keeper(&comms, "", /*keep=*/true);
  for (uint32_t rank = 1; rank < group_.size(); ++rank) {
    group_.rank(rank).link->alter_prepared = [&comms](PrepareReply& reply) {
      reply.communicator = comms.version();
    };
  }
  ASSERT_OK(keeper.Join({}, Clock::now()).status());
  keeper.Done(absl::OkStatus());
  size_t told = 0;
  comms.on_gone = [&] {
    for (uint32_t rank = 1; rank < group_.size(); ++rank) {
      told += group_.rank(rank).link->aborts().size();
    }
  };
  const PeerAccess peers = {group_.peer_memory(), *group_.rank(0).memory, keeper};
  EXPECT_THAT(Run(ByRules("fsdp:3"), peers, CommChoice::kNccl).status, Says("not in device memory"));
  EXPECT_EQ(told, 2u);
}

TEST_F(LoadRunnerTest, AFailedLoadCanBeRunAgain) {
  group_.rank(1).link->on_prepare = [] { return absl::InternalError("boom"); };
  Run(ByRules("fsdp:3"));
  group_.rank(1).link->on_prepare = nullptr;
  ASSERT_OK(Run(ByRules("fsdp:3")).status);
  EXPECT_EQ(Info(1).state, CheckpointState::kActive);
}

}  // namespace
}  // namespace ckptd
