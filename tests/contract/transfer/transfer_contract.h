// What every form of a transfer guarantees: placement, casting, replicas, counts, and how it ends
// early. A form's test file instantiates AnyTransfer, NarrowColumns and LongTransfer.
#ifndef CKPTD_TESTS_CONTRACT_TRANSFER_TRANSFER_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_TRANSFER_TRANSFER_CONTRACT_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "tests/contract/transfer/transfer_contract_fixture.h"

namespace ckptd {

TEST_P(AnyTransfer, PutsEveryTensorOfEveryRankInItsPlace) {
  Finish();
  ASSERT_OK(Run());
  ExpectAllPlaced();
}

TEST_P(AnyTransfer, PlacesTheSameBytesWithoutDigests) {
  Finish(false);
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  ASSERT_TRUE(result.digests.empty());
  ExpectAllPlaced();
}

TEST_P(AnyTransfer, GivesTheDigestOfEachTensorsLocalBytes) {
  Finish();
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_OK_AND_ASSIGN(const std::vector<uint64_t> digests, reached_->Digests(rank, result));
    ASSERT_EQ(digests.size(), world_->expected[rank].size());
    for (size_t t = 0; t < digests.size(); ++t) {
      ASSERT_EQ(digests[t], TensorDigest(world_->expected[rank][t])) << rank << " " << t;
    }
  }
}

TEST_P(AnyTransfer, ReadsEachNeededByteOnceForAllItsReplicas) {
  Finish();
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  EXPECT_EQ(result.storage_bytes, world_->NeededBytes());
}

TEST_P(AnyTransfer, CountsWhatItDid) {
  Finish();
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  EXPECT_EQ(progress_->storage_bytes.load(), result.storage_bytes);
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(result.done[rank], world_->plans[rank].tensor_bytes);
    EXPECT_EQ(progress_->done[rank].load(), world_->plans[rank].tensor_bytes);
  }
}

TEST_P(AnyTransfer, OfSeveralReadersAddsUpToEveryByteOnce) {
  Finish(false);
  uint64_t storage_bytes = 0;
  std::vector<uint64_t> done(3);
  options_.parts = 3;
  for (options_.part = 0; options_.part < 3; ++options_.part) {
    ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
    storage_bytes += result.storage_bytes;
    for (size_t rank = 0; rank < 3; ++rank) done[rank] += result.done[rank];
  }
  ExpectAllPlaced();
  EXPECT_EQ(storage_bytes, world_->NeededBytes());
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(done[rank], world_->plans[rank].tensor_bytes);
}

TEST_P(AnyTransfer, TogetherWithZeroPaddingLeavesNoOldByte) {
  Finish();
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_OK(ZeroPadding(world_->plans[rank], reached_->Owned(rank)));
  }
  ASSERT_OK(Run());
  for (size_t rank = 0; rank < 3; ++rank) {
    const RankPlan& plan = world_->plans[rank];
    EXPECT_EQ(DirtyPadding(plan, reached_->Owned(rank)).value(), std::set<uint32_t>{});
    // at least as long as the plan's slab
    std::vector<std::byte> expected(BytesOf(reached_->Owned(rank)));
    for (size_t t = 0; t < plan.tensors.size(); ++t) {
      const std::vector<std::byte>& tensor = world_->expected[rank][t];
      std::copy(tensor.begin(), tensor.end(),
                expected.begin() + static_cast<ptrdiff_t>(plan.tensors[t].offset));
    }
    ASSERT_TRUE(Slab(rank) == expected) << "rank " << rank;
  }
}

TEST_P(NarrowColumns, AreInTheirPlacesWithDigests) {
  Finish();
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  ExpectAllPlaced();
  ExpectDigests(result);
}

TEST_P(NarrowColumns, AreInTheirPlacesWithoutDigests) {
  Finish(false);
  ASSERT_OK_AND_ASSIGN(const TransferResult result, Run());
  ExpectAllPlaced();
  for (size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(result.done[rank], world_->plans[rank].tensor_bytes);
  }
}

TEST_P(LongTransfer, OfAFileThatIsCutMeanwhileIsAChangedSource) {
  int polls = 0;
  options_.interrupted = [&] {
    if (++polls == 4) std::filesystem::resize_file(file(), 2 << 20);
    return absl::OkStatus();
  };
  const absl::Status status = Run().status();
  ASSERT_EQ(ReasonOf(status), reason::kSourceChanged) << status.ToString();
  EXPECT_EQ(FactsOf(status)["file"], file());
  EXPECT_EQ(FactsOf(status)["tensor"], "t0");
}

TEST_P(LongTransfer, ThatCannotReadNamesTheFileAndTheTensor) {
  std::filesystem::resize_file(file(), 2 << 20);
  const Facts facts = FactsOf(Run().status());
  EXPECT_EQ(facts.at("file"), file());
  EXPECT_EQ(facts.at("tensor"), "t0");
}

TEST_P(LongTransfer, OfAFileThatAnotherOneReplacedIsAChangedSource) {
  world_->index.files[0].object = "another";
  EXPECT_THAT(Run(), FailsWith(absl::StatusCode::kAborted, reason::kSourceChanged));
}

TEST_P(LongTransfer, OfAFileThatIsGoneIsNotFound) {
  std::filesystem::remove(file());
  EXPECT_THAT(Run(), FailsWith(absl::StatusCode::kNotFound, reason::kSourceNotFound));
}

TEST_P(LongTransfer, StopsWithTheStatusOfWhoeverInterruptsIt) {
  int polls = 0;
  options_.interrupted = [&polls]() -> absl::Status {
    return ++polls < 3 ? absl::OkStatus() : absl::CancelledError("enough");
  };
  EXPECT_EQ(Run().status(), absl::CancelledError("enough"));
}

TEST_P(LongTransfer, StopsAllThreadsSoonAfterOneOfThemFailed) {
  int polls = 0;
  options_.interrupted = [&polls]() -> absl::Status {
    if (++polls == 3) return absl::CancelledError("enough");
    std::this_thread::yield();  // lets the thread that has just failed run
    return absl::OkStatus();
  };
  ASSERT_FALSE(Run().ok());
  EXPECT_LT(progress_->storage_bytes.load(), world_->NeededBytes());
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_TRANSFER_TRANSFER_CONTRACT_H_
