// For backends whose memory clients keep after the slab or the backend has ended, or after
// TransferOwnership. A backend's test file includes this and instantiates OutlivingMemoryContract
// with its MemoryCase.
#ifndef CKPTD_TESTS_CONTRACT_MEMORY_OUTLIVING_MEMORY_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_MEMORY_OUTLIVING_MEMORY_CONTRACT_H_

#include <memory>
#include <utility>
#include <vector>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "tests/contract/memory/memory_contract_fixture.h"

namespace ckptd {

class OutlivingMemoryContract : public MemoryContract {};

TEST_P(OutlivingMemoryContract, AnExclusiveClientWritesTheMemoryItself) {
  const std::unique_ptr<Slab> slab = Allocate(segment_, AttachMode::kExclusive);
  const auto client = Attach(*slab, AttachMode::kExclusive);
  client->Write(7, std::vector<std::byte>{std::byte{0x5a}});
  EXPECT_EQ(ReadBytes(slab->view(), 7, 1)[0], std::byte{0x5a});
}

TEST_P(OutlivingMemoryContract, ASealedSlabIsNotHandedOverExclusive) {
  const std::unique_ptr<Slab> slab = Published(segment_, 6);
  EXPECT_THAT(backend_->Export(*slab, AttachMode::kExclusive),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kExclusiveNeedsCopy));
}

TEST_P(OutlivingMemoryContract, ExclusiveMemoryIsNeverMemoryThatWasSealed) {
  Published(2 * segment_, 7);
  const std::unique_ptr<Slab> slab = Allocate(2 * segment_, AttachMode::kExclusive);
  EXPECT_OK(backend_->Export(*slab, AttachMode::kExclusive));
}

TEST_P(OutlivingMemoryContract, GivenUpMemoryLeavesTheBudgetAndStaysTheClients) {
  std::unique_ptr<Slab> slab = Allocate(2 * segment_, AttachMode::kExclusive);
  Fill(*slab, 8);
  const std::vector<uint64_t> ids = IdsOf(*slab);
  const auto client = Attach(*slab, AttachMode::kExclusive);
  backend_->TransferOwnership(std::move(slab));
  EXPECT_EQ(backend_->Usage().arena, 0U);
  EXPECT_FALSE(Overlap(backend_->OwnedSegments(), ids));
  EXPECT_EQ(Matching(client->Read(), 8), 2 * segment_);
}

TEST_P(OutlivingMemoryContract, MemoryLentExclusiveButNotGivenUpIsNeverUsedAgain) {
  std::unique_ptr<Slab> slab = Allocate(segment_, AttachMode::kExclusive);
  const std::vector<uint64_t> ids = IdsOf(*slab);
  { const auto client = Attach(*slab, AttachMode::kExclusive); }
  slab.reset();
  EXPECT_FALSE(Overlap(IdsOf(*Allocate(segment_)), ids));
}

TEST_P(OutlivingMemoryContract, ADroppedSlabIsNotUsedAgainWhileAClientMapsIt) {
  for (const AttachMode mode : {AttachMode::kShared, AttachMode::kPrivate}) {
    std::unique_ptr<Slab> slab = Published(2 * segment_, 9);
    const auto client = Attach(*slab, mode);
    slab.reset();
    for (unsigned i = 0; i < 4; ++i) Published(2 * segment_, 50 + i);
    EXPECT_EQ(Matching(client->Read(), 9), 2 * segment_);
  }
}

TEST_P(OutlivingMemoryContract, ADroppedSlabIsNotUsedAgainWhileAClientHasOnlyDescriptors) {
  std::unique_ptr<Slab> slab = Published(segment_, 10);
  const std::vector<uint64_t> ids = IdsOf(*slab);
  ASSERT_OK_AND_ASSIGN(const SlabHandle handle, backend_->Export(*slab, AttachMode::kShared));
  slab.reset();
  EXPECT_FALSE(Overlap(IdsOf(*Allocate(segment_)), ids));
}

TEST_P(OutlivingMemoryContract, AnotherBackendHasAKeptSlabWithItsBytes) {
  std::unique_ptr<Slab> slab = Published(2 * segment_ + 4096, 11);
  ASSERT_OK_AND_ASSIGN(KeptSlab kept, backend_->Keep(*slab));
  EXPECT_TRUE(kept.sealed);
  slab.reset();
  ASSERT_OK_AND_ASSIGN(backend_, GetParam().make(kBudgetSegments * segment_));
  ASSERT_OK_AND_ASSIGN(slab, backend_->Adopt(std::move(kept)));
  EXPECT_EQ(slab->bytes(), 2 * segment_ + 4096);
  EXPECT_EQ(Matching(ReadBytes(slab->view(), 0, slab->bytes()), 11), slab->bytes());
  EXPECT_GE(backend_->Usage().used, slab->bytes());
  ASSERT_OK(backend_->Seal(*slab));
  const auto client = Attach(*slab, AttachMode::kShared);
  EXPECT_EQ(Matching(client->Read(0, slab->bytes()), 11), slab->bytes());
}

TEST_P(OutlivingMemoryContract, SealedMemoryThatWasTakenOverIsNeverFilledAgain) {
  std::unique_ptr<Slab> slab = Published(segment_, 12);
  ASSERT_OK_AND_ASSIGN(KeptSlab kept, backend_->Keep(*slab));
  slab.reset();
  ASSERT_OK_AND_ASSIGN(backend_, GetParam().make(kBudgetSegments * segment_));
  ASSERT_OK_AND_ASSIGN(slab, backend_->Adopt(std::move(kept)));
  const std::vector<uint64_t> ids = IdsOf(*slab);
  slab.reset();
  EXPECT_EQ(backend_->Usage().used, 0U);
  const std::unique_ptr<Slab> next = Allocate(segment_);
  EXPECT_FALSE(Overlap(IdsOf(*next), ids));
  Fill(*next, 13);
  EXPECT_EQ(Matching(ReadBytes(next->view(), 0, segment_), 13), segment_);
}

TEST_P(OutlivingMemoryContract, UnsealedMemoryThatWasTakenOverIsHandedOverExclusive) {
  std::unique_ptr<Slab> slab = Allocate(segment_, AttachMode::kExclusive);
  Fill(*slab, 14);
  ASSERT_OK_AND_ASSIGN(KeptSlab kept, backend_->Keep(*slab));
  EXPECT_FALSE(kept.sealed);
  slab.reset();
  ASSERT_OK_AND_ASSIGN(backend_, GetParam().make(kBudgetSegments * segment_));
  ASSERT_OK_AND_ASSIGN(slab, backend_->Adopt(std::move(kept)));
  const auto client = Attach(*slab, AttachMode::kExclusive);
  EXPECT_EQ(Matching(client->Read(), 14), segment_);
}

TEST_P(OutlivingMemoryContract, KeptMemoryBeyondTheBudgetIsRefused) {
  std::unique_ptr<Slab> slab = Published(3 * segment_, 15);
  ASSERT_OK_AND_ASSIGN(KeptSlab kept, backend_->Keep(*slab));
  slab.reset();
  ASSERT_OK_AND_ASSIGN(backend_, GetParam().make(2 * segment_));
  EXPECT_THAT(backend_->Adopt(std::move(kept)),
              FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(backend_->Usage().used, 0U);
}

TEST_P(OutlivingMemoryContract, DescriptorsThatAreNoSlabAreRefused) {
  std::unique_ptr<Slab> slab = Published(2 * segment_, 16);
  const auto kept = [&] { return backend_->Keep(*slab).value(); };
  KeptSlab missing = kept();
  missing.fds.pop_back();
  EXPECT_FALSE(backend_->Adopt(std::move(missing)).ok());
  KeptSlab longer = kept();
  longer.bytes += segment_;
  EXPECT_FALSE(backend_->Adopt(std::move(longer)).ok());
  KeptSlab other = kept();
  other.fds.back() = NewMemfd("no slab");
  EXPECT_FALSE(backend_->Adopt(std::move(other)).ok());
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_MEMORY_OUTLIVING_MEMORY_CONTRACT_H_
