// What every MemoryBackend must do. A backend's test file includes this and instantiates
// MemoryContract with its MemoryCase.
#ifndef CKPTD_TESTS_CONTRACT_MEMORY_MEMORY_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_MEMORY_MEMORY_CONTRACT_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "tests/contract/memory/memory_contract_fixture.h"

namespace ckptd {

// --- Allocation and budget ---

TEST_P(MemoryContract, ASlabsSegmentsAddUpToItsBytes) {
  const uint64_t bytes = 2 * segment_ + 512;
  const std::unique_ptr<Slab> slab = Allocate(bytes);
  uint64_t sum = 0;
  for (const Segment& segment : slab->segments()) sum += segment.bytes;
  // Device memory is one segment.
  EXPECT_GE(sum, bytes);
  EXPECT_LT(sum, bytes + segment_);
  EXPECT_EQ(slab->bytes(), bytes);
}

TEST_P(MemoryContract, ASlabThatIsFilledCanStillBeRead) {
  const uint64_t bytes = segment_ + 512;
  const std::unique_ptr<Slab> slab = Allocate(bytes);
  Fill(*slab, 3);
  for (int twice = 0; twice < 2; ++twice) backend_->ReleaseStaging(*slab);
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(Matching(ReadBytes(slab->view(), 0, bytes), 3), bytes);
  }
}

TEST_P(MemoryContract, NoBytesAreAnInvalidRequest) {
  EXPECT_THAT(Ask(0),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest));
}

TEST_P(MemoryContract, MoreThanTheBudgetIsRefusedWithTheNumbers) {
  const std::unique_ptr<Slab> first = Allocate(segment_);
  const auto refused = Ask(kBudgetSegments * segment_);
  ASSERT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  const Facts facts = FactsOf(refused.status());
  EXPECT_EQ(facts.at("asked_bytes"), std::to_string(kBudgetSegments * segment_));
  EXPECT_EQ(facts.at("free_bytes"), std::to_string((kBudgetSegments - 1) * segment_));
  EXPECT_EQ(facts.at("budget_bytes"), std::to_string(kBudgetSegments * segment_));
}

TEST_P(MemoryContract, AnAbsurdSizeIsRefused) {
  EXPECT_THAT(Ask(~uint64_t{0}),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
}

TEST_P(MemoryContract, ARefusalLeavesUsageAndSegmentsAsTheyWere) {
  const std::unique_ptr<Slab> kept = Allocate(segment_);
  Allocate(3 * segment_);  // returned at once: free in the pool
  const MemoryUsage before = backend_->Usage();
  const std::vector<uint64_t> ids = backend_->OwnedSegments();
  EXPECT_FALSE(Ask(kBudgetSegments * segment_).ok());
  const MemoryUsage after = backend_->Usage();
  EXPECT_EQ(after.used, before.used);
  EXPECT_EQ(after.arena, before.arena);
  EXPECT_EQ(backend_->OwnedSegments(), ids);
}

TEST_P(MemoryContract, TheWholeBudgetCanBeUsedAgainInAnotherShape) {
  { const std::unique_ptr<Slab> small = Allocate(segment_ / 2); }
  { const std::unique_ptr<Slab> odd = Allocate(3 * segment_ + segment_ / 2); }
  EXPECT_EQ(Allocate(kBudgetSegments * segment_)->bytes(), kBudgetSegments * segment_);
}

TEST_P(MemoryContract, UsageNeverPassesTheBudget) {
  for (uint64_t i = 1; i < 3 * kBudgetSegments; ++i) {
    const std::unique_ptr<Slab> slab = Allocate(i * segment_ / 3 + 1);
    const MemoryUsage usage = backend_->Usage();
    ASSERT_LE(usage.arena + usage.lingering, usage.budget);
    ASSERT_GE(usage.used, slab->bytes());
  }
  EXPECT_EQ(backend_->Usage().used, 0U);
}

TEST_P(MemoryContract, TheBackendMayGoBeforeItsSlabs) {
  const std::unique_ptr<Slab> slab = Published(segment_, 1);
  backend_.reset();
  EXPECT_EQ(Matching(ReadBytes(slab->view(), 0, segment_), 1), segment_);
}

// --- Sealing and export ---

TEST_P(MemoryContract, ASharedClientSeesTheSlab) {
  const uint64_t bytes = 2 * segment_ + 1536;
  const std::unique_ptr<Slab> slab = Published(bytes, 3);
  const auto client = Attach(*slab, AttachMode::kShared);
  EXPECT_EQ(Matching(client->Read(), 3), bytes);
}

TEST_P(MemoryContract, APrivateClientsWritesDoNotReachTheSlab) {
  const std::unique_ptr<Slab> slab = Published(segment_, 4);
  const auto client = Attach(*slab, AttachMode::kPrivate);
  client->Write(0, std::vector<std::byte>(segment_, std::byte{0xee}));
  EXPECT_EQ(Matching(ReadBytes(slab->view(), 0, segment_), 4), segment_);
}

TEST_P(MemoryContract, ReadersNeedASealedSlab) {
  const std::unique_ptr<Slab> slab = Allocate(segment_);
  EXPECT_EQ(backend_->Export(*slab, AttachMode::kShared).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_P(MemoryContract, SealingTwiceIsFine) {
  const std::unique_ptr<Slab> slab = Published(segment_, 5);
  EXPECT_OK(backend_->Seal(*slab));
}

// --- Reuse ---

TEST_P(MemoryContract, NothingOfAnEarlierSlabIsInAnExport) {
  Published(segment_, 13);
  const uint64_t bytes = segment_ - 4096 - 512;
  std::unique_ptr<Slab> slab = Published(bytes, 14);
  ASSERT_OK_AND_ASSIGN(SlabHandle handle, backend_->Export(*slab, AttachMode::kShared));
  // A client may map more than it was told to.
  handle.segment_bytes = {segment_};
  ASSERT_OK_AND_ASSIGN(const auto client,
                       GetParam().attach(std::move(handle), AttachMode::kShared));
  const std::vector<std::byte> behind = client->Read(bytes, segment_ - bytes);
  EXPECT_EQ(std::count(behind.begin(), behind.end(), std::byte{0}), std::ssize(behind));
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_MEMORY_MEMORY_CONTRACT_H_
