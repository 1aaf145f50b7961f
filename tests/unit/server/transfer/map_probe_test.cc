#include "server/transfer/map_probe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "common/base/posix.h"
#include "server/transfer/sigbus_guard.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr size_t kItem = 1 << 20;

// A clock of which every look takes `step`, so that a touch lasts exactly that.
struct FakeClock {
  static std::chrono::steady_clock::time_point Now() {
    ++looks;
    return time += step;
  }
  static inline std::chrono::steady_clock::time_point time;
  static inline std::chrono::nanoseconds step{0};
  static inline int looks = 0;
};

class MapProbeTest : public ::testing::Test {
 protected:
  MapProbeTest() {
    FakeClock::looks = 0;
    std::filesystem::resize_file(path_, kItem);
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    mapping_ = Mapping(::mmap(nullptr, kItem, PROT_READ, MAP_SHARED, fd_.get(), 0), kItem);
  }

  TempFolder folder_;
  const std::string path_ = folder_.Write("file", "");
  UniqueFd fd_;
  Mapping mapping_;
  MapProbe probe_{FakeClock::Now};
};

TEST_F(MapProbeTest, CallsAMappingSlowWhoseReachesLastLongerThanTheLimit) {
  FakeClock::step = kSlowFault + std::chrono::nanoseconds(1);
  EXPECT_TRUE(probe_.Slow(mapping_.span()));
}

TEST_F(MapProbeTest, CallsAMappingQuickWhoseReachesLastNoLonger) {
  FakeClock::step = kSlowFault;
  EXPECT_FALSE(probe_.Slow(mapping_.span()));
}

// Items in a row that it answers without a look at the clock.
int Trusted(MapProbe& probe, std::span<const std::byte> item) {
  for (int items = 0;; ++items) {
    const int looks = FakeClock::looks;
    probe.Slow(item);
    if (FakeClock::looks != looks) return items;
  }
}

TEST_F(MapProbeTest, LooksAgainOnlyAfterManyItemsOnceItFoundWhatItHadSaid) {
  for (const bool slow : {true, false}) {
    FakeClock::step = 2 * kSlowFault * (slow ? 1 : 0);
    while (probe_.Slow(mapping_.span()) != slow || Trusted(probe_, mapping_.span()) == 0) {
    }
    EXPECT_EQ(Trusted(probe_, mapping_.span()), 63);
  }
}

TEST_F(MapProbeTest, TrustsNoItemThatStandsAlone) {
  for (int i = 0; i < 3; ++i) {
    for (const bool slow : {true, false}) {
      FakeClock::step = 2 * kSlowFault * (slow ? 1 : 0);
      EXPECT_EQ(probe_.Slow(mapping_.span()), slow);
    }
  }
}

TEST_F(MapProbeTest, SaysNothingOfAnItemTooShortToTry) {
  FakeClock::step = 2 * kSlowFault;
  EXPECT_FALSE(probe_.Slow(mapping_.span().first(kFaultReach)));
  EXPECT_EQ(FakeClock::looks, 0);
}

TEST_F(MapProbeTest, SurvivesAFileThatIsCut) {
  if (!SigbusGuardInForce()) GTEST_SKIP() << "a sanitizer owns SIGBUS here";
  FakeClock::step = 2 * kSlowFault;
  std::filesystem::resize_file(path_, 4096);
  EXPECT_FALSE(probe_.Slow(mapping_.span()));
}

}  // namespace
}  // namespace ckptd
