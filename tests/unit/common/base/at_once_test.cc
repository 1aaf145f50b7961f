#include "common/base/at_once.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

// While it exists no thread can be started: each would need a larger stack than there are
// addresses.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_attr_init(&attributes_);
    pthread_getattr_default_np(&before_);
    pthread_attr_setstacksize(&attributes_, size_t{1} << 47);
    pthread_setattr_default_np(&attributes_);
  }
  ~NoMoreThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&attributes_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t attributes_;
  pthread_attr_t before_;
};

std::vector<int> Called(size_t count, size_t most) {
  std::vector<std::atomic<int>> called(count);
  AtOnce(count, most, [&](size_t i) { ++called[i]; });
  return {called.begin(), called.end()};
}

TEST(AtOnce, CallsEachNumberOnceWithHoweverManyThreads) {
  for (const size_t most : {0, 1, 3, 100}) {
    for (const size_t count : {0, 1, 2, 50}) {
      EXPECT_EQ(Called(count, most), std::vector<int>(count, 1)) << count << " " << most;
    }
  }
  const NoMoreThreads none;
  EXPECT_EQ(Called(50, 8), std::vector<int>(50, 1));
}

TEST(AtOnce, CallsAsManyAtOnceAsItMay) {
  std::latch all(4);
  AtOnce(4, 4, [&](size_t) { all.arrive_and_wait(); });
}

TEST(AtOnce, TheFirstIsOfTheCallingThread) {
  std::vector<std::thread::id> threads(8);
  AtOnce(8, 4, [&](size_t i) { threads[i] = std::this_thread::get_id(); });
  EXPECT_EQ(threads[0], std::this_thread::get_id());
}

TEST(AtOnce, WhatNeedsAThreadOfItsOwnSaysThatThereIsNone) {
  const auto answer = [] { return 7; };
  EXPECT_EQ(Async("counting", answer)->get(), 7);
  StartThread("counting", [] {})->join();
  const NoMoreThreads none;
  EXPECT_THAT(Async("counting", answer), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
  EXPECT_THAT(Async("counting", answer), Says("counting: no thread could be started"));
  EXPECT_THAT(StartThread("counting", [] {}), FailsWith(absl::StatusCode::kResourceExhausted, reason::kNoMemory));
}

}  // namespace
}  // namespace ckptd
