#include "server/daemon/stop_deadline.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <future>

#include "server/daemon/commands.h"

namespace ckptd {
namespace {

TEST(StopDeadline, WhatEndsInTimeEndsAsItWould) {
  const StopDeadline deadline(std::chrono::hours(1));
}

TEST(StopDeadlineDeathTest, EndsAProcessThatStillWaitsForSomethingAfterIt) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const StopDeadline deadline(std::chrono::milliseconds(10));
        std::promise<void> storage_answers;
        storage_answers.get_future().wait();
      },
      testing::ExitedWithCode(kExitFailed), "stopping: it has not finished after 0.0 s");
}

TEST(StopDeadlineDeathTest, EndsAlsoAProcessThatCanStartNoThread) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer needs address space of its own";
#endif
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        rlimit no_stack_fits;
        no_stack_fits.rlim_cur = no_stack_fits.rlim_max = 1;
        ::setrlimit(RLIMIT_AS, &no_stack_fits);
        const StopDeadline deadline(std::chrono::milliseconds(10));
        ::pause();
      },
      testing::KilledBySignal(SIGALRM), "watching how long stopping takes");
}

}  // namespace
}  // namespace ckptd
