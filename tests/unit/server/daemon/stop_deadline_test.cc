#include "server/daemon/stop_deadline.h"

#include <gtest/gtest.h>

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
      testing::ExitedWithCode(kExitFailed), "stopping: still at work after 0.0 s");
}

}  // namespace
}  // namespace ckptd
