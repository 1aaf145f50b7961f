// An arena whose size nobody has set: how it follows the loads, and when it gives memory back.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/slab_mapping.h"
#include "server/memory/host/host_memory.h"
#include "server/memory/host/populate.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kSegment = uint64_t{4} << 20;

std::chrono::steady_clock::time_point Soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(30);
}

bool Comes(const std::function<bool()>& done) {
  const auto deadline = Soon();
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// Host memory of a system with `system_` segments, minus those that the arena has.
class AutoArenaTest : public testing::Test {
 protected:
  AutoArenaTest() {
    options_.budget_bytes = 64 * kSegment;
    options_.segment_bytes = kSegment;
    options_.arena_target_bytes = 8 * kSegment;
    options_.arena_why = "a guess";
    options_.fill_reserve_bytes = 4 * kSegment;
    options_.load_reserve_bytes = 0;
    options_.available_memory = [this]() -> absl::StatusOr<uint64_t> {
      const HostMemory* const memory = started_;
      const uint64_t held = memory == nullptr ? 0 : memory->Usage().arena;
      ++looks_;
      priority_ = ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()));
      return system_ * kSegment - std::min(system_ * kSegment, held);
    };
    options_.note = [this](const std::string& line) {
      MutexLock lock(mutex_);
      notes_.push_back(line);
    };
    automatic_.idle = std::chrono::seconds(0);
    automatic_.poll_interval = milliseconds(1);
    automatic_.remember = [this](uint64_t bytes) {
      MutexLock lock(mutex_);
      remembered_.push_back(bytes);
    };
  }
  ~AutoArenaTest() override {
    started_ = nullptr;
    memory_.reset();
  }

  void Start() {
    options_.automatic = automatic_;
    auto memory = HostMemory::Create(options_);
    ASSERT_OK(memory);
    memory_ = std::move(*memory);
    started_ = memory_.get();
  }
  void StartFilled() {
    Start();
    ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  }
  std::unique_ptr<Slab> Load(uint64_t bytes) {
    auto slab = memory_->Allocate(bytes, AttachMode::kShared);
    EXPECT_OK(slab);
    if (!slab.ok()) return nullptr;
    memory_->ReleaseStaging(**slab);
    return std::move(*slab);
  }
  uint64_t Segments() { return memory_->Usage().arena / kSegment; }
  std::string Why() { return memory_->Why(); }
  // Whether the fill thread has checked the system `times` times since.
  bool Looks(int times) {
    const int before = looks_;
    return Comes([&] { return looks_ >= before + times; });
  }
  std::vector<uint64_t> Remembered() {
    MutexLock lock(mutex_);
    return remembered_;
  }
  std::string Notes() {
    MutexLock lock(mutex_);
    std::string all;
    for (const std::string& line : notes_) all += line + "\n";
    return all;
  }

  std::atomic<uint64_t> system_ = 1000;
  std::atomic<int> looks_ = 0;
  std::atomic<int> priority_ = 0;  // of the thread that checked last
  HostMemoryOptions options_;
  AutoArena automatic_;
  std::atomic<const HostMemory*> started_ = nullptr;
  std::unique_ptr<HostMemory> memory_;
  Mutex mutex_;
  std::vector<uint64_t> remembered_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(AutoArenaTest, IsFilledAsFarAsWasGuessedAndSaysSo) {
  StartFilled();
  EXPECT_EQ(Segments(), 8U);
  EXPECT_EQ(Why(), "a guess");
}

TEST_F(AutoArenaTest, IsToBeAsLargeAsTheLargestShardThatWasLoaded) {
  StartFilled();
  const auto large = Load(3 * kSegment);
  const auto small = Load(kSegment);
  EXPECT_EQ(memory_->Usage().arena_target, 3 * kSegment);
  EXPECT_EQ(Why(), "as much as the largest shard that was loaded");
}

TEST_F(AutoArenaTest, TheLargestShardIsRememberedEachTimeThatItGrows) {
  Start();
  Load(2 * kSegment);
  ASSERT_TRUE(Comes([&] { return Remembered().size() == 1; }));
  Load(kSegment);
  Load(3 * kSegment + 1);
  ASSERT_TRUE(Comes([&] { return Remembered().size() == 2; }));
  EXPECT_EQ(Remembered(), (std::vector<uint64_t>{2 * kSegment, 3 * kSegment + 1}));
}

TEST_F(AutoArenaTest, WhatWasLoadedJustBeforeTheEndIsRememberedToo) {
  automatic_.poll_interval = std::chrono::hours(1);
  Start();
  Load(kSegment);
  started_ = nullptr;
  memory_.reset();
  EXPECT_EQ(Remembered(), std::vector<uint64_t>{kSegment});
}

TEST_F(AutoArenaTest, WhatNobodyLoadsIntoForAWhileGoesBackAndIsNotFilledAgain) {
  automatic_.idle = milliseconds(50);
  Start();
  EXPECT_TRUE(Comes([&] { return memory_->Usage().arena_target == 0; }));
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 0U);
  EXPECT_THAT(Why(), testing::HasSubstr("nothing was loaded for"));
  EXPECT_TRUE(Comes([&] { return Notes().find("free memory was given back") != std::string::npos; }));
}

TEST_F(AutoArenaTest, WhatAShardIsInStaysHoweverLongNothingIsLoaded) {
  automatic_.idle = milliseconds(50);
  Start();
  const auto slab = Load(3 * kSegment);
  EXPECT_TRUE(Comes([&] { return Segments() == 3; }));
  EXPECT_EQ(memory_->Usage().used, 3 * kSegment);
}

TEST_F(AutoArenaTest, WithoutAnIdleTimeNothingGoesBackByItself) {
  StartFilled();
  ASSERT_TRUE(Looks(5));
  EXPECT_EQ(Segments(), 8U);
}

TEST_F(AutoArenaTest, ASystemThatRunsShortGetsAsMuchBackAsItLacks) {
  StartFilled();
  system_ = 9;  // one of them is left, and four are the reserve
  EXPECT_TRUE(Comes([&] { return Segments() <= 5; }));
  ASSERT_TRUE(Looks(5));
  EXPECT_EQ(Segments(), 5U);
  EXPECT_THAT(Why(), testing::HasSubstr("the system is short of it"));
}

TEST_F(AutoArenaTest, ASystemThatHasHalfTheReserveIsNotShort) {
  StartFilled();
  system_ = 10;
  ASSERT_TRUE(Looks(5));
  EXPECT_EQ(Segments(), 8U);
}

TEST_F(AutoArenaTest, ASystemThatRunsShortGetsNothingOfShards) {
  StartFilled();
  const auto slab = Load(7 * kSegment);
  system_ = 7;
  EXPECT_TRUE(Comes([&] { return Segments() == 7; }));
  EXPECT_EQ(memory_->Usage().used, 7 * kSegment);
}

TEST_F(AutoArenaTest, WhatWentBackComesAgainWhenMoreIsLoaded) {
  StartFilled();
  EXPECT_EQ(memory_->Trim(), 8 * kSegment);
  Load(2 * kSegment);  // free after this
  EXPECT_EQ(memory_->Usage().arena_target, 2 * kSegment);
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 2U);
}

TEST_F(AutoArenaTest, IsFilledForALoadThatIsToCome) {
  StartFilled();
  memory_->Expect(11 * kSegment, "named by --load");
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 11U);
  EXPECT_EQ(Why(), "named by --load");
}

TEST_F(AutoArenaTest, IsNotFilledWhileALoadFillsItsSlab) {
  Start();
  auto slab = memory_->Allocate(kSegment, AttachMode::kShared);
  ASSERT_OK(slab);
  memory_->Expect(20 * kSegment, "more");
  const uint64_t before = Segments();
  EXPECT_FALSE(memory_->WaitUntilFilled(std::chrono::steady_clock::now() + milliseconds(100)));
  EXPECT_LE(Segments(), before + 1);  // one more may be in progress
  memory_->ReleaseStaging(**slab);
  memory_->Expect(20 * kSegment, "more");
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 20U);
}

TEST_F(AutoArenaTest, IsFilledOnWhenALoadHasFailed) {
  StartFilled();
  ASSERT_OK(memory_->Allocate(kSegment, AttachMode::kShared));  // allocated and given back at once
  memory_->Expect(20 * kSegment, "more");
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 20U);
}

TEST_F(AutoArenaTest, IsFilledBehindTrainersThatStart) {
  StartFilled();
  EXPECT_EQ(priority_, 19);
}

// --- Where a size was set ---

class SetArenaTest : public AutoArenaTest {
 protected:
  void StartSet() {
    auto memory = HostMemory::Create(options_);
    ASSERT_OK(memory);
    memory_ = std::move(*memory);
    started_ = memory_.get();
    ASSERT_TRUE(memory_->WaitUntilFilled(Soon()));
  }
};

TEST_F(SetArenaTest, TrimGivesBackWhatIsInNoSlabAndSaysHowMuch) {
  StartSet();
  const auto slab = Load(3 * kSegment);
  EXPECT_EQ(memory_->Trim(), 5 * kSegment);
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 3U);
  EXPECT_EQ(memory_->Trim(), 0U);
}

TEST_F(SetArenaTest, WhatWasTrimmedIsFilledAgainAfterTheNextLoad) {
  StartSet();
  memory_->Trim();
  Load(kSegment);
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 8U);
}

TEST_F(SetArenaTest, NoLoadThatIsToComeChangesIt) {
  StartSet();
  memory_->Expect(11 * kSegment, "named by --load");
  EXPECT_TRUE(memory_->WaitUntilFilled(Soon()));
  EXPECT_EQ(Segments(), 8U);
}

TEST_F(SetArenaTest, WhatClientsMapIsNotTrimmedUntilTheyLetGo) {
  StartSet();
  auto slab = Load(2 * kSegment);
  ASSERT_OK(memory_->Seal(*slab));
  {
    ASSERT_OK_AND_ASSIGN(const SlabHandle held, memory_->Export(*slab, AttachMode::kShared));
    slab.reset();
    EXPECT_EQ(memory_->Trim(), 6 * kSegment);
    EXPECT_EQ(memory_->Usage().lingering, 2 * kSegment);
  }
  EXPECT_EQ(memory_->Trim(), 2 * kSegment);
}

// --- Those who wait for the fill's segment help to make it ---

class PopulateTest : public testing::Test {
 protected:
  PopulateTest() : fd_(::memfd_create("test", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(kBytes)), 0);
    const int fds[] = {fd_.get()};
    const uint64_t sizes[] = {kBytes};
    auto mapped = MapSlab(fds, sizes, {.mode = MapMode::kSharedWritable, .populate = false});
    EXPECT_OK(mapped);
    mapping_ = std::move(*mapped);
  }
  // Pages that are present, found without touching any.
  size_t Present() const {
    std::vector<unsigned char> pages(kBytes / 4096);
    EXPECT_EQ(::mincore(mapping_.data(), kBytes, pages.data()), 0);
    return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) {
      return (page & 1) != 0;
    }));
  }

  static constexpr uint64_t kBytes = 8 * kHugePageBytes;
  const UniqueFd fd_;
  Mapping mapping_;
};

TEST_F(PopulateTest, WhoJoinsInMakesWhatIsLeft) {
  size_t present = 0;
  PopulateOptions options;
  options.on_start = [&](const std::shared_ptr<PopulateWork>& work) {
    work->Join(2);
    present = Present();
  };
  ASSERT_OK(Populate(fd_.get(), mapping_.span(), options));
  EXPECT_EQ(present, kBytes / 4096);
}

TEST_F(PopulateTest, WhoJoinsInAfterwardsTouchesNothing) {
  std::shared_ptr<PopulateWork> late;
  PopulateOptions options;
  options.on_start = [&](std::shared_ptr<PopulateWork> work) { late = std::move(work); };
  ASSERT_OK(Populate(fd_.get(), mapping_.span(), options));
  mapping_.Reset();  // an access would fault
  late->Join(2);
}

// A read-only mapping gets the error that kernels before 5.14 return for every mapping.
TEST_F(PopulateTest, HasTheFileTakeItsPagesWhereTheKernelCannotFaultThemIn) {
  ASSERT_EQ(::mprotect(mapping_.data(), kBytes, PROT_READ), 0);
  ASSERT_OK(Populate(fd_.get(), mapping_.span(), {}));
  struct stat file = {};
  ASSERT_EQ(::fstat(fd_.get(), &file), 0);
  EXPECT_EQ(static_cast<uint64_t>(file.st_blocks) * 512, kBytes);
}

TEST_F(PopulateTest, EndsEarlyWhenItIsCancelled) {
  PopulateOptions options;
  options.on_start = [](const std::shared_ptr<PopulateWork>& work) { work->Cancel(); };
  const absl::Status ended = Populate(fd_.get(), mapping_.span(), options).status();
  EXPECT_TRUE(absl::IsCancelled(ended)) << ended;
  EXPECT_EQ(Present(), 0U);
}

TEST_F(PopulateTest, EndsWhenThoseWhoJoinedInAreDone) {
  std::vector<std::thread> others;
  PopulateOptions options;
  options.on_start = [&](const std::shared_ptr<PopulateWork>& work) {
    others.emplace_back([work] { work->Join(2); });
  };
  ASSERT_OK(Populate(fd_.get(), mapping_.span(), options));
  EXPECT_EQ(Present(), kBytes / 4096);
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace ckptd
