#include "server/memory/host/host_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSegment = 16 * kMiB;

std::chrono::steady_clock::time_point Soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

class HostMemoryTest : public testing::Test {
 protected:
  HostMemoryTest() {
    options_.budget_bytes = 8 * kSegment;
    options_.segment_bytes = kSegment;
    options_.load_reserve_bytes = 0;
    options_.available_memory = [this]() -> absl::StatusOr<uint64_t> { return available_.load(); };
  }

  void Start() {
    auto memory = HostMemory::Create(options_);
    ASSERT_OK(memory);
    memory_ = std::move(*memory);
  }
  std::unique_ptr<Slab> Allocate(uint64_t bytes, AttachMode mode = AttachMode::kShared) {
    auto slab = memory_->Allocate(bytes, mode);
    EXPECT_OK(slab);
    return slab.ok() ? std::move(*slab) : nullptr;
  }
  uint64_t Arena() { return memory_->Usage().arena; }

  std::atomic<uint64_t> available_ = uint64_t{1} << 40;
  HostMemoryOptions options_;
  std::unique_ptr<HostMemory> memory_;
};

TEST_F(HostMemoryTest, TheLastSegmentIsCutToSize) {
  Start();
  const auto slab = Allocate(kSegment + 3 * kMiB);
  EXPECT_EQ(Arena(), kSegment + 4 * kMiB);
}

TEST_F(HostMemoryTest, WhatCouldNotBeLentForWritingAltogetherIsLentToReadersYet) {
  Start();
  const auto slab = Allocate(3 * kSegment, AttachMode::kExclusive);
  const UniqueFd next(::dup(STDIN_FILENO));
  rlimit most = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &most), 0);
  const rlimit few = {static_cast<rlim_t>(next.get()) + 2, most.rlim_max};  // room for one more
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto refused = memory_->Export(*slab, AttachMode::kExclusive);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &most), 0);
  EXPECT_FALSE(refused.ok());
  EXPECT_OK(memory_->Seal(*slab));
  EXPECT_OK(memory_->Export(*slab, AttachMode::kShared));
}

TEST_F(HostMemoryTest, AFreeSegmentThatWastesLittleServesAnotherSize) {
  Start();
  Allocate(10 * kMiB);
  const auto slab = Allocate(8 * kMiB);
  EXPECT_EQ(Arena(), 10 * kMiB);
}

TEST_F(HostMemoryTest, AFreeSegmentThatWastesMuchIsLeftForALargerSlab) {
  Start();
  Allocate(10 * kMiB);
  const auto slab = Allocate(4 * kMiB);
  EXPECT_EQ(Arena(), 14 * kMiB);
}

TEST_F(HostMemoryTest, AWholeFreeSegmentServesAQuarterOfIt) {
  Start();
  Allocate(kSegment);
  const auto slab = Allocate(kSegment / 4);
  EXPECT_EQ(Arena(), kSegment);
}

TEST_F(HostMemoryTest, AWholeFreeSegmentIsNotSpentOnLessThanAQuarter) {
  Start();
  Allocate(kSegment);
  const auto slab = Allocate(kMiB);
  EXPECT_EQ(Arena(), kSegment + 2 * kMiB);
}

TEST_F(HostMemoryTest, ReadersTakeSealedMemoryFirst) {
  Start();
  auto exclusive = Allocate(kSegment);
  auto shared = Allocate(kSegment);
  ASSERT_OK(memory_->Seal(*shared));
  const uint64_t sealed_id = shared->segments()[0].id;
  exclusive.reset();
  shared.reset();
  EXPECT_EQ(Allocate(kSegment)->segments()[0].id, sealed_id);
}

TEST_F(HostMemoryTest, WhatLiesIdleIsGivenBackWhereOtherDaemonsHereCouldNotTakeAsMuch) {
  options_.local_daemons = 2;
  Start();
  auto sealed = Allocate(3 * kSegment);
  ASSERT_OK(memory_->Seal(*sealed));
  sealed.reset();
  available_ = 4 * kSegment;
  auto exclusive = Allocate(2 * kSegment, AttachMode::kExclusive);
  EXPECT_EQ(Arena(), 5 * kSegment);
  exclusive.reset();
  available_ = 3 * kSegment;
  EXPECT_TRUE(Allocate(4 * kSegment, AttachMode::kExclusive));
  EXPECT_EQ(Arena(), 4 * kSegment + 2 * kSegment) << "one segment makes up for what the other lacks";
}

TEST_F(HostMemoryTest, TheArenaIsFilledInTheBackgroundToItsTarget) {
  options_.arena_target_bytes = 3 * kSegment + 2 * kMiB;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), options_.arena_target_bytes);
  EXPECT_EQ(memory_->Usage().used, 0U);
}

TEST_F(HostMemoryTest, TheArenaIsNotFilledBeyondTheBudget) {
  options_.arena_target_bytes = 100 * kSegment;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), options_.budget_bytes);
}

TEST_F(HostMemoryTest, ASlabComesFromTheFilledArena) {
  options_.arena_target_bytes = 4 * kSegment;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  available_ = 0;  // no memory may be made
  const auto slab = Allocate(4 * kSegment);
  EXPECT_EQ(Arena(), 4 * kSegment);
}

TEST_F(HostMemoryTest, MemoryDroppedForANewReaderIsReplacedInTheBackground) {
  options_.arena_target_bytes = 2 * kSegment;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  {
    const auto slab = Allocate(2 * kSegment);
    ASSERT_OK(memory_->Seal(*slab));
  }
  const std::vector<uint64_t> before = memory_->OwnedSegments();
  memory_->OnWriterRestart();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 2 * kSegment);
  EXPECT_NE(memory_->OwnedSegments(), before);
}

TEST_F(HostMemoryTest, AFillThatFindsNoMemorySaysSoAndLetsLoadsBe) {
  std::atomic<int> notes = 0;
  options_.arena_target_bytes = 2 * kSegment;
  options_.note = [&notes](const std::string&) { ++notes; };
  available_ = 0;
  Start();
  EXPECT_FALSE(memory_->WaitUntilFilled(Soon()));
  available_ = uint64_t{1} << 40;
  EXPECT_NE(Allocate(kSegment), nullptr);
  memory_.reset();  // joins the thread that writes notes
  EXPECT_GE(notes, 1);
}

TEST_F(HostMemoryTest, MemoryTheSystemDoesNotHaveIsRefusedBeforeItIsTouched) {
  available_ = kSegment;
  Start();
  const auto refused = memory_->Allocate(2 * kSegment, AttachMode::kShared);
  ASSERT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_EQ(FactsOf(refused.status()).at("free_bytes"), std::to_string(kSegment));
  EXPECT_EQ(Arena(), 0U);
}

TEST_F(HostMemoryTest, WhatLoadingTakesBesideSlabsIsLeft) {
  constexpr uint64_t kBeside = (uint64_t{16} << 20) + kSegment / 256;
  options_.load_reserve_bytes.reset();
  available_ = kSegment + kBeside - 1;
  Start();
  const auto refused = memory_->Allocate(kSegment, AttachMode::kShared);
  EXPECT_EQ(ReasonOf(refused.status()), reason::kNoMemory);
  EXPECT_THAT(MessageOf(refused.status()),
              testing::HasSubstr(std::to_string(kBeside) + " bytes are reserved for others"));
  available_ = kSegment + kBeside;
  EXPECT_OK(memory_->Allocate(kSegment, AttachMode::kShared));
}

TEST_F(HostMemoryTest, UnneededFreeMemoryMakesRoomWhenTheSystemIsShort) {
  Start();
  Allocate(2 * kMiB);  // free, but too small for a whole segment
  uint64_t calls = 0;
  options_.available_memory = [&calls]() -> absl::StatusOr<uint64_t> {
    return ++calls == 1 ? kSegment - 2 * kMiB : kSegment;
  };
  memory_.reset();
  Start();
  Allocate(2 * kMiB);
  calls = 0;
  const auto slab = Allocate(kSegment);
  EXPECT_EQ(Arena(), kSegment);
}

TEST_F(HostMemoryTest, WithoutAnOwnershipCheckLentMemoryIsNeverUsedAgain) {
  options_.ownership_check = false;
  Start();
  auto slab = Allocate(kSegment);
  const uint64_t id = slab->segments()[0].id;
  ASSERT_OK(memory_->Seal(*slab));
  ASSERT_OK(memory_->Export(*slab, AttachMode::kShared));
  slab.reset();
  EXPECT_NE(Allocate(kSegment)->segments()[0].id, id);
  EXPECT_NE(memory_->tier().find("never reused"), std::string::npos);
}

TEST_F(HostMemoryTest, WithoutAnOwnershipCheckMemoryThatWasNeverLentIsUsedAgain) {
  options_.ownership_check = false;
  Start();
  auto slab = Allocate(kSegment);
  const uint64_t id = slab->segments()[0].id;
  ASSERT_OK(memory_->Seal(*slab));
  slab.reset();
  EXPECT_EQ(Allocate(kSegment)->segments()[0].id, id);
}

TEST_F(HostMemoryTest, MemoryThatAPeerMayStillBeFillingIsNeverUsedAgain) {
  options_.filled_by_peers = true;
  Start();
  auto slab = Allocate(kSegment);
  const uint64_t id = slab->segments()[0].id;
  slab.reset();  // its load did not complete
  EXPECT_EQ(Arena(), 0U);
  slab = Allocate(kSegment);
  EXPECT_NE(slab->segments()[0].id, id);
  EXPECT_FALSE(memory_->OriginalFd(id).ok());  // a late writer cannot map it either
}

TEST_F(HostMemoryTest, MemoryThatPeersHaveFilledIsUsedAgain) {
  options_.filled_by_peers = true;
  Start();
  for (const uint64_t bytes : {kSegment, 2 * kSegment, kSegment}) {
    const auto slab = Allocate(bytes);
    EXPECT_GE(Arena(), bytes);
    memory_->ReleaseStaging(*slab);
  }
  EXPECT_EQ(Arena(), 2 * kSegment);
}

TEST_F(HostMemoryTest, MemoryThatNobodyElseFillsIsUsedAgainThoughItsLoadWasGivenUp) {
  Start();
  const uint64_t id = Allocate(kSegment)->segments()[0].id;
  EXPECT_EQ(Allocate(kSegment)->segments()[0].id, id);
}

TEST_F(HostMemoryTest, HugePagesAreCountedWhileTheyAreInTheArena) {
  Start();
  auto slab = Allocate(kSegment, AttachMode::kExclusive);
  const uint64_t with = memory_->Usage().huge_pages;
  memory_->TransferOwnership(std::move(slab));
  EXPECT_LE(with, kSegment);
  EXPECT_EQ(memory_->Usage().huge_pages, 0U);
}

TEST_F(HostMemoryTest, OriginalDescriptorsAreGivenForOurSegmentsOnly) {
  Start();
  const auto slab = Allocate(kSegment);
  const uint64_t id = slab->segments()[0].id;
  EXPECT_OK(memory_->OriginalFd(id));
  EXPECT_EQ(memory_->OriginalFd(id + 1000).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HostMemoryTest, SealingWhatWasHandedOverExclusiveIsRefused) {
  Start();
  const auto slab = Allocate(kSegment, AttachMode::kExclusive);
  ASSERT_OK(memory_->Export(*slab, AttachMode::kExclusive));
  EXPECT_THAT(memory_->Seal(*slab),
              FailsWith(absl::StatusCode::kFailedPrecondition, reason::kTaken));
}

TEST_F(HostMemoryTest, ASegmentSizeThatIsNoWholeHugePageIsAConfigurationError) {
  options_.segment_bytes = kMiB;
  EXPECT_THAT(HostMemory::Create(options_),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST_F(HostMemoryTest, ABudgetOfNothingIsAConfigurationError) {
  options_.budget_bytes = 0;
  EXPECT_THAT(HostMemory::Create(options_),
              FailsWith(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid));
}

TEST_F(HostMemoryTest, StoppingDuringTheFillIsPrompt) {
  options_.budget_bytes = uint64_t{4} << 30;
  options_.arena_target_bytes = options_.budget_bytes;
  Start();
  memory_.reset();
  EXPECT_EQ(memory_, nullptr);
}

}  // namespace
}  // namespace ckptd
