// For backends whose memory clients keep after the slab or the backend has ended, or after
// TransferOwnership. A backend's test file includes this and instantiates OutlivingMemoryContract
// with its MemoryCase.
#ifndef CKPTD_TESTS_CONTRACT_MEMORY_OUTLIVING_MEMORY_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_MEMORY_OUTLIVING_MEMORY_CONTRACT_H_

#include <memory>
#include <utility>
#include <vector>

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

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_MEMORY_OUTLIVING_MEMORY_CONTRACT_H_
