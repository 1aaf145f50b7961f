// For backends that reuse memory, which depends on who still sees it. A backend's test file
// includes this and instantiates ReusedMemoryContract with its MemoryCase.
#ifndef CKPTD_TESTS_CONTRACT_MEMORY_REUSED_MEMORY_CONTRACT_H_
#define CKPTD_TESTS_CONTRACT_MEMORY_REUSED_MEMORY_CONTRACT_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/contract/memory/memory_contract_fixture.h"

namespace ckptd {

class ReusedMemoryContract : public MemoryContract {};

TEST_P(ReusedMemoryContract, AReturnedSlabIsUsedAgain) {
  std::unique_ptr<Slab> slab = Allocate(2 * segment_);
  std::vector<uint64_t> first = IdsOf(*slab);
  slab.reset();
  std::vector<uint64_t> second = IdsOf(*Allocate(2 * segment_));
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

TEST_P(ReusedMemoryContract, MemoryThatAClientStillMapsIsCountedAsLingering) {
  std::unique_ptr<Slab> slab = Published(2 * segment_, 9);
  const auto client = Attach(*slab, AttachMode::kShared);
  slab.reset();
  EXPECT_EQ(backend_->Usage().lingering, 2 * segment_);
}

TEST_P(ReusedMemoryContract, ADroppedSlabIsUsedAgainOnceTheClientLetGo) {
  std::unique_ptr<Slab> slab = Published(segment_, 11);
  const std::vector<uint64_t> ids = IdsOf(*slab);
  auto client = Attach(*slab, AttachMode::kShared);
  slab.reset();
  client.reset();
  EXPECT_EQ(IdsOf(*Allocate(segment_)), ids);
  EXPECT_EQ(backend_->Usage().lingering, 0U);
}

TEST_P(ReusedMemoryContract, LingeringMemoryMakesRoomWhenTheBudgetIsNeeded) {
  const uint64_t all = kBudgetSegments * segment_;
  std::unique_ptr<Slab> slab = Published(all, 12);
  const auto client = Attach(*slab, AttachMode::kShared);
  slab.reset();
  const std::unique_ptr<Slab> next = Allocate(all);
  EXPECT_EQ(backend_->Usage().arena + backend_->Usage().lingering, all);
  EXPECT_EQ(Matching(client->Read(), 12), all);
}

TEST_P(ReusedMemoryContract, AfterTheWriterRestartedSealedMemoryIsNeverUsedAgain) {
  std::unique_ptr<Slab> held = Published(segment_, 15);
  std::vector<uint64_t> sealed = IdsOf(*Published(segment_, 16));
  const std::vector<uint64_t> held_ids = IdsOf(*held);
  sealed.insert(sealed.end(), held_ids.begin(), held_ids.end());
  backend_->OnWriterRestart();
  held.reset();
  EXPECT_FALSE(Overlap(IdsOf(*Allocate(2 * segment_)), sealed));
  EXPECT_FALSE(Overlap(backend_->OwnedSegments(), sealed));
}

TEST_P(ReusedMemoryContract, AfterTheWriterRestartedMemorySealedLaterButTakenBeforeIsNotUsedAgain) {
  std::unique_ptr<Slab> slab = Allocate(segment_);
  const std::vector<uint64_t> ids = IdsOf(*slab);
  backend_->OnWriterRestart();
  ASSERT_OK(backend_->Seal(*slab));
  slab.reset();
  EXPECT_FALSE(Overlap(IdsOf(*Allocate(segment_)), ids));
}

TEST_P(ReusedMemoryContract, MemoryTakenAfterTheWriterRestartedIsUsedAgainThoughSealed) {
  backend_->OnWriterRestart();
  const std::vector<uint64_t> ids = IdsOf(*Published(segment_, 17));
  EXPECT_EQ(IdsOf(*Allocate(segment_)), ids);
}

TEST_P(ReusedMemoryContract, AfterTheWriterRestartedUnsealedMemoryIsStillUsedAgain) {
  const std::vector<uint64_t> ids = IdsOf(*Allocate(segment_));
  backend_->OnWriterRestart();
  EXPECT_EQ(IdsOf(*Allocate(segment_)), ids);
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_CONTRACT_MEMORY_REUSED_MEMORY_CONTRACT_H_
