#include "common/source/storage/watched.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "common/source/storage/posix.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr StorageWatch::Clock::duration kAny{0};

TEST(StorageWatch, TellsTheOldestOfTheCallsThatHaveNotReturned) {
  StorageWatch watch("/ckpt", "/");
  EXPECT_FALSE(watch.Oldest(kAny).has_value());
  auto first = std::make_unique<StorageWatch::Call>(&watch, "/ckpt/a", 8);
  auto second = std::make_unique<StorageWatch::Call>(&watch, "/ckpt/b", 16);
  const auto third = std::make_unique<StorageWatch::Call>(&watch, "/ckpt/c", 32);
  EXPECT_EQ(watch.Oldest(kAny)->file, "/ckpt/a");
  EXPECT_EQ(watch.Oldest(kAny)->offset, 8u);
  EXPECT_FALSE(watch.Oldest(std::chrono::hours(1)).has_value()) << "it has not lasted so long";
  second.reset();
  first.reset();
  EXPECT_EQ(watch.Oldest(kAny)->file, "/ckpt/c");
}

// An object that does not answer until it may.
class Hanging final : public ReadableObject {
 public:
  explicit Hanging(std::shared_future<void> answers)
      : ReadableObject({.path = "/ckpt/b", .bytes = 64}), answers_(std::move(answers)) {}
  absl::Status ReadAt(uint64_t, std::span<std::byte> out) const override {
    answers_.wait();
    std::memset(out.data(), 7, out.size());
    return absl::OkStatus();
  }

 private:
  const std::shared_future<void> answers_;
};

class HangingStorage final : public PosixStorage {
 public:
  explicit HangingStorage(std::shared_future<void> answers) : answers_(std::move(answers)) {}
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(const std::string&) const override {
    return std::make_shared<const Hanging>(answers_);
  }

 private:
  const std::shared_future<void> answers_;
};

TEST(WatchedStorage, AReadThatHangsIsNamedUntilItReturns) {
  std::promise<void> answers;
  const auto watch = std::make_shared<StorageWatch>("/ckpt", "/");
  const WatchedStorage storage(
      std::make_shared<const HangingStorage>(answers.get_future().share()), watch);
  ASSERT_OK_AND_ASSIGN(const auto object, storage.Open("/ckpt/b"));
  std::array<std::byte, 8> bytes = {};
  auto read = std::async(std::launch::async, [&] { return object->ReadAt(24, bytes); });
  while (!watch->Oldest(kAny).has_value()) std::this_thread::yield();
  EXPECT_EQ(watch->Oldest(kAny)->file, "/ckpt/b");
  EXPECT_EQ(watch->Oldest(kAny)->offset, 24u);
  answers.set_value();
  EXPECT_OK(read.get());
  EXPECT_EQ(bytes[7], std::byte{7});
  EXPECT_FALSE(watch->Oldest(kAny).has_value());
}

}  // namespace
}  // namespace ckptd
