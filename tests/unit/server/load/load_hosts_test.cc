// Loads over a group in one process whose ranks are on several hosts: what cannot be
// mapped is sent.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/load/load_runner.h"
#include "tests/testing/core_values.h"
#include "tests/testing/group_in_process.h"
#include "tests/testing/small_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr char kName[] = "checkpoints/a";
constexpr uint64_t kAllBytes = SmallSource::kBytesA + SmallSource::kBytesB;

class LoadHostsTest : public ::testing::TestWithParam<ReaderPolicy> {
 protected:
  LoadOutcome Run(const std::string& rules, ReaderPolicy policy) {
    ReadyLoad load;
    load.name = kName;
    load.request = RuleRequest(rules, source_.path());
    load.deadline = Soon();
    load.request_digests.assign(group_.size(), RequestDigest(load.request));
    LoadRunner::Parts parts{group_.rank(0).catalog, group_.membership(), group_.peers(),
                            stopping_, {.threads = 2}, policy};
    return LoadRunner(parts, load, group_.membership().CurrentSession().value()).Run();
  }
  Progress ProgressOf(uint32_t rank) {
    return group_.rank(rank).catalog.Get(kName).value().progress;
  }

  SmallSource source_;
  GroupInProcess group_{4, 8, {"a", "a", "b", "b"}};
  std::atomic<bool> stopping_ = false;
};

TEST_P(LoadHostsTest, EveryRankGetsItsRowsAndTheirDigests) {
  ASSERT_OK(Run("fsdp:4", GetParam()).status);
  const std::vector<std::pair<uint64_t, uint64_t>> rows = {{0, 2}, {2, 4}, {4, 6}, {6, 7}};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    const Catalog& catalog = group_.rank(rank).catalog;
    const auto bytes = BytesOf(catalog, kName, 0);
    EXPECT_EQ(bytes, Rows(source_.a(), 1000, rows[rank].first, rows[rank].second));
    EXPECT_EQ(catalog.leases().Look(kName).value().shard->digests[0], TensorDigest(bytes)) << rank;
  }
}

TEST_P(LoadHostsTest, AllBytesOfAllRanksAreCounted) {
  ASSERT_OK(Run("replicate:4", GetParam()).status);
  EXPECT_EQ(ProgressOf(3).bytes_done, 4 * kAllBytes);
  EXPECT_EQ(ProgressOf(3).bytes_total, 4 * kAllBytes);
  EXPECT_EQ(ProgressOf(3).slowest_rank, -1);
}

TEST_P(LoadHostsTest, ASecondLoadFillsOnlyWhoLacksTheShard) {
  ASSERT_OK(Run("fsdp:4", GetParam()).status);
  ASSERT_OK(group_.rank(3).catalog.Unload(kName, false));
  ASSERT_OK(Run("fsdp:4", GetParam()).status);
  EXPECT_EQ(group_.rank(2).link->prepared(), 1);
  EXPECT_EQ(BytesOf(group_.rank(3).catalog, kName, 0), Rows(source_.a(), 1000, 6, 7));
}

INSTANTIATE_TEST_SUITE_P(Readers, LoadHostsTest,
                         ::testing::Values(ReaderPolicy::kRank0, ReaderPolicy::kPerNode,
                                           ReaderPolicy::kAll));

// A leader that is lost while this rank hashes what was streamed ends the load here.
TEST_F(LoadHostsTest, MemoryThatWentWithItsLoadIsNotHashed) {
  RankInProcess& far = group_.rank(2);
  absl::StatusOr<std::vector<uint64_t>> digests = absl::UnknownError("nobody has asked");
  far.link->on_commit = [&] {
    const auto incoming = far.side.Receive(group_.membership().epoch(), kName);
    CommitCall call;
    call.tensor_bytes = call.streamed_bytes = kAllBytes;
    far.catalog.Fail(kName, absl::CancelledError("given up meanwhile"));
    if (incoming.ok()) digests = (*incoming)->Finish(call);
    return incoming.status();
  };
  EXPECT_FALSE(Run("replicate:4", ReaderPolicy::kRank0).status.ok());
  EXPECT_THAT(digests, FailsWith(absl::StatusCode::kAborted, reason::kEpochChanged));
}

// Of a sender that is late, or lies: by then clients may have the memory.
TEST_F(LoadHostsTest, NoFrameIsTakenOnceTheLoadIsCounted) {
  for (const uint32_t rank : {1, 2}) {  // whose memory is mapped, and who is sent frames
    RankInProcess& own = group_.rank(rank);
    std::shared_ptr<PreparedLoad> incoming;
    own.link->on_commit = [&] {
      incoming = own.side.Receive(group_.membership().epoch(), kName).value();
      return absl::OkStatus();
    };
    ASSERT_OK(Run("replicate:4", ReaderPolicy::kRank0).status);
    ASSERT_NE(incoming, nullptr);
    EXPECT_THAT(incoming->Take({}, {}),
                FailsWith(absl::StatusCode::kAborted, reason::kEpochChanged));
    own.link->on_commit = nullptr;
    for (uint32_t i = 0; i < 4; ++i) ASSERT_OK(group_.rank(i).catalog.Unload(kName, false));
  }
}

TEST_F(LoadHostsTest, Rank0ReadsOnceAndStreamsToTheOtherHost) {
  ASSERT_OK(Run("replicate:4", ReaderPolicy::kRank0).status);
  EXPECT_EQ(ProgressOf(1).read.storage_bytes, kAllBytes);
  EXPECT_EQ(ProgressOf(1).sent_bytes, 3 * kAllBytes);
  EXPECT_THAT(ProgressOf(1).streamed_ranks, ElementsAre(2, 3));
}

TEST_F(LoadHostsTest, AReaderPerHostReadsOncePerHostAndStreamsNothing) {
  ASSERT_OK(Run("replicate:4", ReaderPolicy::kPerNode).status);
  EXPECT_EQ(ProgressOf(1).read.storage_bytes, 2 * kAllBytes);
  EXPECT_THAT(ProgressOf(1).streamed_ranks, IsEmpty());
}

TEST_F(LoadHostsTest, AReaderThatOpensFilesAndMapsMemoryIsBusyAndKeepsNobodyWaiting) {
  std::vector<bool> busy;
  group_.on_member_maps = [&](const std::optional<ReadingNow>& now) {
    busy.push_back(now.has_value() && now->name == kName && now->done.busy);
  };
  ASSERT_OK(Run("replicate:4", ReaderPolicy::kPerNode).status);
  EXPECT_THAT(busy, ElementsAre(true)) << "rank 2 maps the memory of rank 3";
}

TEST_F(LoadHostsTest, AllReadersTogetherReadOnce) {
  ASSERT_OK(Run("replicate:4", ReaderPolicy::kAll).status);
  EXPECT_EQ(ProgressOf(1).read.storage_bytes, kAllBytes);
}

TEST_F(LoadHostsTest, AReaderThatFailsFailsTheLoadForAllWithItsReason) {
  group_.rank(2).link->read = [](const ExecuteCall&) -> absl::StatusOr<ReadReport> {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound, "no such file here");
  };
  const LoadOutcome outcome = Run("fsdp:4", ReaderPolicy::kPerNode);
  EXPECT_THAT(outcome.status, FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
  EXPECT_THAT(outcome.status, Says("rank 2"));
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group_.rank(rank).memory->Usage().used, 0u) << rank;
  }
}

TEST_F(LoadHostsTest, AMemberThatPlansOtherwiseThanItsLeaderSaysTakesNoMemory) {
  group_.rank(2).link->alter_prepare = [](PrepareCall& call) { call.rank_digest ^= 1; };
  const LoadOutcome outcome = Run("fsdp:4", ReaderPolicy::kRank0);
  EXPECT_THAT(outcome.status, FailsWith(absl::StatusCode::kInternal, reason::kPlanMismatch));
  EXPECT_THAT(outcome.status, Says("rank 2 computed plan digest"));
  EXPECT_EQ(group_.rank(2).memory->Usage().used, 0u);
}

TEST_F(LoadHostsTest, AReaderThatPlansForAnotherRankOtherwiseThanTheLeaderPlacesNothing) {
  const auto honest = group_.rank(2).link->read;
  group_.rank(2).link->read = [honest](const ExecuteCall& call) {
    ExecuteCall heard = call;
    heard.read.targets.back().rank_digest ^= 1;
    return honest(heard);
  };
  const LoadOutcome outcome = Run("fsdp:4", ReaderPolicy::kPerNode);
  EXPECT_THAT(outcome.status, FailsWith(absl::StatusCode::kInternal, reason::kPlanMismatch));
  EXPECT_THAT(outcome.status, Says("to read for it: its plan digest is"));
}

TEST_F(LoadHostsTest, AReaderThatClaimsMoreThanItDidIsFoundOutBeforePublishing) {
  group_.rank(2).link->read = [](const ExecuteCall& call) -> absl::StatusOr<ReadReport> {
    ReadReport report;
    for (const ReadOrder::Target& target : call.read.targets) {
      report.filled.push_back({target.who.rank, 1'000'000, true, {}});
    }
    report.filled.push_back({99, 1, false, {}});
    return report;
  };
  EXPECT_THAT(Run("fsdp:4", ReaderPolicy::kPerNode).status,
              FailsWith(absl::StatusCode::kInternal, reason::kCoverage));
}

}  // namespace
}  // namespace ckptd
