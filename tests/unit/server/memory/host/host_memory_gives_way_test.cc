// Host memory while others want memory as well: other daemons, the background fill, clients that
// own some of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "common/base/reasons.h"
#include "server/memory/host/host_memory.h"
#include "server/memory/host/memory_claims.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kSegment = uint64_t{4} << 20;
constexpr uint64_t kPlenty = uint64_t{1} << 40;

std::chrono::steady_clock::time_point Soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

class HostMemoryGivesWay : public testing::Test {
 protected:
  HostMemoryGivesWay() {
    options_.budget_bytes = 64 * kSegment;
    options_.segment_bytes = kSegment;
    options_.fill_reserve_bytes = 0;
    options_.load_reserve_bytes = 0;
    options_.available_memory = [this]() -> absl::StatusOr<uint64_t> { return available_.load(); };
  }
  // Destroys the memory first, because the test may block a fill.
  ~HostMemoryGivesWay() override { memory_.reset(); }

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
  void GiveAway(uint64_t bytes) {
    auto slab = Allocate(bytes, AttachMode::kExclusive);
    ASSERT_OK(memory_->Export(*slab, AttachMode::kExclusive));
    memory_->TransferOwnership(std::move(slab));
  }
  uint64_t Arena() { return memory_->Usage().arena; }

  std::atomic<uint64_t> available_ = kPlenty;
  HostMemoryOptions options_;
  std::unique_ptr<HostMemory> memory_;
};

// --- Other daemons ---

class BesideAnotherDaemon : public HostMemoryGivesWay {
 protected:
  BesideAnotherDaemon() {
    options_.claims_path = path_;
    options_.available_memory = [this]() -> absl::StatusOr<uint64_t> {
      if (++looks_ == happens_at_) happens_();
      return available_.load();
    };
  }
  // Another daemon is about to fault in `bytes`.
  void AnotherClaims(uint64_t bytes) {
    ASSERT_OK_AND_ASSIGN(auto answer, another_.Claim(bytes));
    claim_ = std::move(answer.claim);
    ASSERT_TRUE(claim_.has_value());
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "claims";
  const MemoryClaims another_{path_, "rank 1", MemoryClaims::OfMachine([] { return kPlenty; })};
  std::optional<MemoryClaim> claim_;
  int looks_ = 0;
  int happens_at_ = 3;  // the first try, and the one after making room, fail
  std::function<void()> happens_ = [] {};
};

TEST_F(BesideAnotherDaemon, ALoadIsRefusedWhatThatOneIsFaultingIn) {
  available_ = 3 * kSegment;
  AnotherClaims(2 * kSegment);
  happens_ = [this] { available_ = kSegment; };
  Start();
  const auto refused = memory_->Allocate(2 * kSegment, AttachMode::kShared);
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_THAT(refused, Says("other daemons here are allocating " + std::to_string(2 * kSegment)));
  EXPECT_EQ(Arena(), 0U);
}

TEST_F(BesideAnotherDaemon, ALoadWaitsWhileWhatThatOneHasFaultedInIsCountedTwice) {
  available_ = 3 * kSegment;
  AnotherClaims(2 * kSegment);
  happens_ = [this] { claim_->Lower(kSegment); };
  Start();
  EXPECT_NE(Allocate(2 * kSegment), nullptr);
  EXPECT_EQ(looks_, 4);
}

TEST_F(BesideAnotherDaemon, MemoryThatNoLoadNeedsMakesRoomForWhatThatOneClaims) {
  Start();
  Allocate(kSegment / 2);  // free, but too small for a whole segment
  looks_ = 0;
  available_ = 2 * kSegment;
  AnotherClaims(kSegment + kSegment / 2);
  happens_at_ = 2;
  happens_ = [this] { available_ += kSegment / 2; };
  const auto slab = Allocate(kSegment);
  EXPECT_EQ(Arena(), kSegment);
}

TEST_F(BesideAnotherDaemon, ALoadClaimsWhatItHasNotFaultedInYet) {
  const uint64_t all = options_.budget_bytes;
  Start();
  std::atomic<bool> seen = false;
  std::atomic<bool> stop = false;
  std::thread other([&] {
    while (!stop) {
      const auto answer = another_.Claim(1);
      if (answer.ok() && answer->claimed > 0 && answer->claimed < all) seen = true;
    }
  });
  const auto deadline = Soon();
  while (!seen && std::chrono::steady_clock::now() < deadline) {
    memory_->TransferOwnership(Allocate(all));
  }
  stop = true;
  other.join();
  EXPECT_TRUE(seen);
  ASSERT_OK_AND_ASSIGN(const auto answer, another_.Claim(1));
  EXPECT_EQ(answer.claimed, 0U);
}

TEST_F(BesideAnotherDaemon, TheFillLeavesWhatThatOneIsFaultingIn) {
  available_ = 3 * kSegment;
  AnotherClaims(2 * kSegment + 1);
  options_.arena_target_bytes = kSegment;
  Start();
  EXPECT_FALSE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 0U);
}

// --- Clients, and all others ---

TEST_F(HostMemoryGivesWay, WhatWasGivenAwayIsNotMadeAnewInTheBackground) {
  options_.arena_target_bytes = 4 * kSegment;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  GiveAway(3 * kSegment);
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), kSegment);
}

TEST_F(HostMemoryGivesWay, WhatLoadsMakeAnewIsFilledAgainInTheBackground) {
  options_.arena_target_bytes = 2 * kSegment;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  GiveAway(2 * kSegment);
  {
    const auto slab = Allocate(kSegment);
    ASSERT_OK(memory_->Seal(*slab));
  }
  memory_->OnWriterRestart();  // makes the arena drop it
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), kSegment);
}

TEST_F(HostMemoryGivesWay, MoreGivenAwayThanTheTargetCountsAsTheTarget) {
  options_.arena_target_bytes = 2 * kSegment;
  Start();
  ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  GiveAway(8 * kSegment);
  {
    const auto slab = Allocate(2 * kSegment);
    ASSERT_OK(memory_->Seal(*slab));
  }
  memory_->OnWriterRestart();
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 2 * kSegment);
}

TEST_F(HostMemoryGivesWay, TheFillLeavesAReserveThatLoadsMayUse) {
  options_.arena_target_bytes = kSegment;
  options_.fill_reserve_bytes = 2 * kSegment;
  available_ = 3 * kSegment - 1;
  Start();
  EXPECT_FALSE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 0U);
  const auto slab = Allocate(2 * kSegment);
  EXPECT_EQ(Arena(), 2 * kSegment);
}

TEST_F(HostMemoryGivesWay, TheFillLeavesATenthOfTheMachineWhereNothingElseIsSaid) {
  options_.arena_target_bytes = kSegment;
  options_.fill_reserve_bytes.reset();
  available_ = 16 * kSegment;  // less than a tenth of the test machine's memory
  Start();
  EXPECT_FALSE(memory_->WaitUntilFilled(Soon()));
}

// --- The background fill ---

// The fill is blocked in one segment until the test resumes it.
class DuringTheFill : public HostMemoryGivesWay {
 protected:
  DuringTheFill() {
    options_.arena_target_bytes = 32 * kSegment;
    options_.available_memory = [this]() -> absl::StatusOr<uint64_t> {
      if (std::this_thread::get_id() == loader_.load()) {
        filled_before_load_ = fills_.load();
      } else if (++fills_ == stands_at_) {
        go_on_.get_future().wait();
      }
      return kPlenty;
    };
  }
  ~DuringTheFill() override { LetGo(); }
  void LetGo() {
    if (!std::exchange(let_go_, true)) go_on_.set_value();
  }

  // Starts a load that waits by the time this returns.
  std::future<absl::StatusOr<std::unique_ptr<Slab>>> StartLoad(uint64_t bytes) {
    WaitUntil([this] { return fills_ == stands_at_; });
    std::atomic<pid_t> thread = 0;
    auto load = std::async(std::launch::async, [this, bytes, &thread] {
      loader_ = std::this_thread::get_id();
      thread = ::gettid();
      return memory_->Allocate(bytes, AttachMode::kShared);
    });
    WaitUntil([&thread] { return thread != 0 && Sleeps(thread); });
    return load;
  }
  static bool Sleeps(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(") ");
    return name_end != std::string::npos && text.substr(name_end + 2, 1) == "S";
  }
  static void WaitUntil(const std::function<bool()>& done) {
    const auto deadline = Soon();
    while (!done() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  }

  std::promise<void> go_on_;
  bool let_go_ = false;
  int stands_at_ = 1;
  std::atomic<int> fills_ = 0;
  std::atomic<std::thread::id> loader_ = {};
  std::atomic<int> filled_before_load_ = 0;
};

TEST_F(DuringTheFill, ALoadWaitsForNoSegmentButTheOneInTheMaking) {
  Start();
  auto load = StartLoad(3 * kSegment);
  LetGo();
  ASSERT_OK_AND_ASSIGN(const auto slab, load.get());
  memory_->ReleaseStaging(*slab);
  EXPECT_EQ(filled_before_load_, 1);
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 32 * kSegment);
}

TEST_F(DuringTheFill, AWaitingLoadTakesWhatAnotherSlabGivesBack) {
  stands_at_ = 2;
  Start();
  WaitUntil([this] { return fills_ == 2; });
  auto slab = Allocate(kSegment);  // the segment that was filled first
  const uint64_t id = slab->segments()[0].id;
  auto load = StartLoad(kSegment);
  slab.reset();
  // Far sooner than the load would stop waiting for the fill.
  EXPECT_EQ(load.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  ASSERT_OK_AND_ASSIGN(slab, load.get());
  EXPECT_EQ(slab->segments()[0].id, id);
  EXPECT_EQ(fills_, 2);
}

TEST_F(DuringTheFill, GoesOnWhenALoadHasWaitedInVain) {
  stands_at_ = 2;
  Start();
  WaitUntil([this] { return fills_ == 2; });
  const auto slab = Allocate(kSegment);
  memory_->ReleaseStaging(*slab);
  auto load = StartLoad(options_.budget_bytes);  // more than is available
  LetGo();
  EXPECT_THAT(load.get(), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 32 * kSegment);
}

TEST_F(DuringTheFill, ALoadThatHasAllItNeedsEndsTheSegmentInTheMaking) {
  std::atomic<int> notes = 0;
  options_.note = [&notes](const std::string&) { ++notes; };
  stands_at_ = 2;
  Start();
  WaitUntil([this] { return fills_ == 2; });
  const auto slab = Allocate(kSegment);
  LetGo();
  WaitUntil([&notes] { return notes > 0; });
  EXPECT_EQ(Arena(), kSegment);
  memory_->ReleaseStaging(*slab);
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Arena(), 32 * kSegment);
  EXPECT_EQ(fills_, 33);  // 32, and the one that ended early
  memory_.reset();        // before `notes` ends
}

}  // namespace
}  // namespace ckptd
