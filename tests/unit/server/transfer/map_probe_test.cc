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

// A clock that each call advances by `step`, so that a touch takes exactly that.
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

// How many of the next `items` items get an answer without a probe.
int EnabledFor(MapProbe& probe, std::span<const std::byte> item, int items) {
  int trusted = 0;
  for (int i = 0; i < items; ++i) {
    const int looks = FakeClock::looks;
    probe.IsSlow(item);
    trusted += FakeClock::looks == looks ? 1 : 0;
  }
  return trusted;
}

TEST_F(MapProbeTest, CallsAMappingSlowWhoseReachesLastLongerThanTheLimit) {
  FakeClock::step = kSlowFault + std::chrono::nanoseconds(1);
  EXPECT_TRUE(probe_.IsSlow(mapping_.span()));
}

TEST_F(MapProbeTest, CallsAMappingQuickWhoseReachesLastNoLonger) {
  FakeClock::step = kSlowFault;
  EXPECT_FALSE(probe_.IsSlow(mapping_.span()));
}

TEST_F(MapProbeTest, TrustsAnAnswerForMoreItemsTheOftenerItWasFound) {
  for (const bool slow : {true, false}) {
    MapProbe probe(FakeClock::Now);
    FakeClock::step = 2 * kSlowFault * (slow ? 1 : 0);
    if (slow) probe.IsSlow(mapping_.span());  // a changed answer counts from the second time on
    for (const int trusted : {1, 3, 7, 15, 31, 63, 63, 63}) {
      EXPECT_EQ(EnabledFor(probe, mapping_.span(), 1), 0) << "before " << trusted;
      EXPECT_EQ(EnabledFor(probe, mapping_.span(), trusted), trusted);
    }
  }
}

TEST_F(MapProbeTest, LooksAtTheNextItemWhenTheAnswerChanges) {
  FakeClock::step = 2 * kSlowFault;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(probe_.IsSlow(mapping_.span()));
  FakeClock::step = std::chrono::nanoseconds(0);
  while (probe_.IsSlow(mapping_.span())) {
  }
  EXPECT_EQ(EnabledFor(probe_, mapping_.span(), 1), 0);
}

TEST_F(MapProbeTest, TrustsNoItemThatStandsAlone) {
  for (int i = 0; i < 3; ++i) {
    for (const bool slow : {true, false}) {
      FakeClock::step = 2 * kSlowFault * (slow ? 1 : 0);
      EXPECT_EQ(probe_.IsSlow(mapping_.span()), slow);
    }
  }
}

TEST_F(MapProbeTest, SaysNothingOfAnItemTooShortToTry) {
  FakeClock::step = 2 * kSlowFault;
  EXPECT_FALSE(probe_.IsSlow(mapping_.span().first(kFaultAroundBytes)));
  EXPECT_EQ(FakeClock::looks, 0);
}

TEST_F(MapProbeTest, SurvivesAFileThatIsCut) {
  if (!SigbusGuardInForce()) GTEST_SKIP() << "a sanitizer owns SIGBUS here";
  FakeClock::step = 2 * kSlowFault;
  // The bytes that the file still has are slow, and most of the probe touches these.
  std::filesystem::resize_file(path_, 5 * kFaultAroundBytes);
  EXPECT_FALSE(probe_.IsSlow(mapping_.span()));
}

}  // namespace
}  // namespace ckptd
