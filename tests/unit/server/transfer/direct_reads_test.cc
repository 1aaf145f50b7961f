#include "server/transfer/direct_reads.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace ckptd {
namespace {

constexpr uint64_t kMost = 64 << 10;

// A file of 200,001 bytes whose byte at i is known, on a disk that may support O_DIRECT.
class DirectReadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "directXXXXXX";
    const UniqueFd made(::mkstemp(pattern.data()));
    ASSERT_TRUE(made.valid());
    path_ = pattern;
    for (size_t i = 0; i < 200'001; ++i) content_.push_back(static_cast<char>(i * 31 + i / 251));
    std::ofstream(path_, std::ios::binary).write(content_.data(), 200'001);
    fd_ = UniqueFd(::open(path_.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    reads_ = DirectReads::Create(3, kMost);
    if (!fd_.valid() || reads_ == nullptr) {
      GTEST_SKIP() << "no O_DIRECT on " << ::testing::TempDir() << ", or no io_uring";
    }
  }
  void TearDown() override { ::unlink(path_.c_str()); }

  bool Equal(std::span<const std::byte> data, uint64_t begin) const {
    return std::equal(data.begin(), data.end(), content_.begin() + static_cast<long>(begin),
                      [](std::byte b, char c) { return b == static_cast<std::byte>(c); });
  }

  std::string path_;
  std::vector<char> content_;
  UniqueFd fd_;
  std::unique_ptr<DirectReads> reads_;
};

TEST_F(DirectReadsTest, BringsBytesFromAnyOffset) {
  for (const uint64_t begin : {0UL, 1UL, 4095UL, 4096UL, 100'000UL, 199'000UL}) {
    const uint64_t end = std::min(begin + 1001, uint64_t{200'001});
    const auto slot = reads_->Start(fd_.get(), begin, end);
    ASSERT_TRUE(slot.has_value());
    const auto data = reads_->Wait(*slot);
    EXPECT_EQ(data.size(), end - begin);
    EXPECT_TRUE(Equal(data, begin)) << begin;
    reads_->Release(*slot);
  }
}

TEST_F(DirectReadsTest, HaveAsManyInFlightAsThereAreSlots) {
  std::vector<size_t> slots;
  for (uint64_t begin = 0; begin < 3 * kMost; begin += kMost) {
    const auto slot = reads_->Start(fd_.get(), begin, std::min(begin + kMost, uint64_t{200'001}));
    ASSERT_TRUE(slot.has_value());
    slots.push_back(*slot);
  }
  EXPECT_FALSE(reads_->Start(fd_.get(), 0, 1).has_value());
  EXPECT_TRUE(Equal(reads_->Wait(slots[2]), 2 * kMost));  // in any order
  EXPECT_TRUE(Equal(reads_->Wait(slots[0]), 0));
  reads_->Release(slots[1]);  // nobody waited for it
  EXPECT_TRUE(reads_->Start(fd_.get(), 0, 1).has_value());
}

TEST_F(DirectReadsTest, BringNothingPastTheEndOfTheFile) {
  const auto slot = reads_->Start(fd_.get(), 199'000, 200'002);
  ASSERT_TRUE(slot.has_value());
  EXPECT_TRUE(reads_->Wait(*slot).empty());
}

TEST_F(DirectReadsTest, RefuseARangeThatDoesNotFit) {
  EXPECT_FALSE(reads_->Start(fd_.get(), 0, kMost + 1).has_value());
}

TEST_F(DirectReadsTest, BringNothingFromADescriptorThatIsNone) {
  const auto slot = reads_->Start(-1, 0, 4096);
  ASSERT_TRUE(slot.has_value());
  EXPECT_TRUE(reads_->Wait(*slot).empty());
}

}  // namespace
}  // namespace ckptd
