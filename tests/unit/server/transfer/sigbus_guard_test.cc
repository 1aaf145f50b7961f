#include "server/transfer/sigbus_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "common/base/posix.h"

namespace ckptd {
namespace {

constexpr size_t kPage = 4096;

// Two pages of memory whose file has only one.
class SigbusGuard : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(SigbusGuardInForce());
    file_ = UniqueFd(::memfd_create("guard", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(file_.get(), kPage), 0);
    void* address = ::mmap(nullptr, 2 * kPage, PROT_READ, MAP_SHARED, file_.get(), 0);
    ASSERT_NE(address, MAP_FAILED);
    mapping_ = Mapping(address, 2 * kPage);
  }

  std::byte ReadAt(size_t offset) const {
    return *static_cast<const volatile std::byte*>(mapping_.data() + offset);
  }

  UniqueFd file_;
  Mapping mapping_;
};

TEST_F(SigbusGuard, LetsABodyThatReadsWhatIsThereFinish) {
  bool finished = false;
  EXPECT_TRUE(RunGuarded(mapping_.span(), [&] {
    (void)ReadAt(0);
    finished = true;
  }));
  EXPECT_TRUE(finished);
}

TEST_F(SigbusGuard, ReportsAReadOfBytesThatWentAwayEveryTime) {
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(RunGuarded(mapping_.span(), [&] { (void)ReadAt(kPage + 17); }));
  }
}

// "As before" means the action that the process had when its guard was installed. Here that is
// the default one, whatever the parent process has set (sanitizers report the signal and exit).
[[maybe_unused]] const auto kActionBefore = ::signal(SIGBUS, SIG_DFL);

using SigbusGuardDeathTest = SigbusGuard;

TEST_F(SigbusGuardDeathTest, DiesAsBeforeOfAFaultOutsideOfTheGuardedRange) {
  EXPECT_EXIT(RunGuarded(mapping_.span().first(kPage), [&] { (void)ReadAt(kPage); }),
              ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(SigbusGuardDeathTest, DiesAsBeforeOfAFaultWithoutAGuard) {
  EXPECT_EXIT((void)ReadAt(kPage), ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(SigbusGuardDeathTest, DiesAsBeforeWhenTheSignalWasSent) {
  EXPECT_EXIT(::raise(SIGBUS), ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(SigbusGuard, KnowsThatAnotherHandlerTookItsPlace) {
  struct sigaction other = {};
  other.sa_handler = SIG_DFL;
  struct sigaction ours = {};
  ASSERT_EQ(::sigaction(SIGBUS, &other, &ours), 0);
  const bool in_force = SigbusGuardInForce();
  ASSERT_EQ(::sigaction(SIGBUS, &ours, nullptr), 0);
  EXPECT_FALSE(in_force);
}

}  // namespace
}  // namespace ckptd
