#include "server/transfer/direct_items.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr uint64_t kMost = 64 << 10;
constexpr uint64_t kBytes = 300'001;

// A file whose byte at i is known, on a disk that may support O_DIRECT. No length or offset in it
// is aligned.
class DirectItemsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string content;
    for (size_t i = 0; i < kBytes; ++i) content.push_back(At(i));
    const std::string path = folder_.Write("file", content);
    source_->direct = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!source_->direct.valid() || DirectReads::Create(1, kMost) == nullptr) {
      GTEST_SKIP() << "no O_DIRECT on " << path << ", or no io_uring";
    }
  }

  static char At(size_t i) { return static_cast<char>(i * 31 + i / 251); }
  static WorkItem Item(uint64_t begin, uint64_t end) {
    WorkItem item;
    item.begin = begin;
    item.end = end;
    return item;
  }
  // Whether these bytes come and equal the file's.
  bool Brings(DirectItems& items, uint64_t begin, uint64_t end) {
    const std::span<std::byte> room = std::span(room_).first(end - begin);
    const std::span<const std::byte> data = items.Get(begin, room);
    if (data.size() != end - begin) return false;
    for (size_t i = 0; i < data.size(); ++i) {
      if (data[i] != static_cast<std::byte>(At(begin + i))) return false;
    }
    return true;
  }
  // Makes all further reads fail.
  void BreakFile() { source_->direct = UniqueFd(); }

  TempFolder folder_;
  std::shared_ptr<OpenSource> source_ = std::make_shared<OpenSource>();
  std::vector<std::byte> room_ = std::vector<std::byte>(kBytes);
};

TEST_F(DirectItemsTest, BringALongItemUpToTheEndOfTheFileByAnyNumberOfSlots) {
  for (const size_t slots : {1, 2, 3, 9}) {
    for (const uint64_t block : {4096, 10'007, 150'000}) {
      const auto items = DirectItems::Create(slots, kMost);
      ASSERT_TRUE(items->Enqueue(Item(1001, kBytes), source_, std::nullopt));
      ASSERT_TRUE(items->Begin(std::nullopt));
      for (uint64_t at = 1001; at < kBytes; at += block) {
        ASSERT_TRUE(Brings(*items, at, std::min(at + block, kBytes))) << slots << " " << at;
      }
      items->End();
    }
  }
}

TEST_F(DirectItemsTest, HaveTheNextPiecesInFlightWhileOneIsUsed) {
  const auto items = DirectItems::Create(3, kMost);
  ASSERT_TRUE(items->Enqueue(Item(7, 7 + 4 * kMost), source_, std::nullopt));
  ASSERT_TRUE(items->Begin(std::nullopt));
  ASSERT_TRUE(Brings(*items, 7 + kMost, 8 + kMost));  // leaves room for the fourth
  BreakFile();
  EXPECT_TRUE(Brings(*items, 7 + 2 * kMost, 7 + 4 * kMost));
}

TEST_F(DirectItemsTest, HaveTheNextItemInFlightWhileTheEndOfALongOneIsUsed) {
  const auto items = DirectItems::Create(2, kMost);
  ASSERT_TRUE(items->Enqueue(Item(7, 7 + 2 * kMost), source_, std::nullopt));
  ASSERT_TRUE(items->Enqueue(Item(200'000, 210'000), source_, std::nullopt));
  ASSERT_TRUE(items->Begin(std::nullopt));
  ASSERT_TRUE(Brings(*items, 7 + kMost, 8 + kMost));
  BreakFile();
  items->End();
  EXPECT_TRUE(items->IsNext(Item(200'000, 210'000)));
  EXPECT_TRUE(items->Begin(std::nullopt));
  EXPECT_TRUE(Brings(*items, 200'000, 210'000));
}

TEST_F(DirectItemsTest, HaveRoomOnceTheEndOfALongItemIsInFlight) {
  const auto items = DirectItems::Create(2, kMost);
  ASSERT_TRUE(items->HasRoom());
  ASSERT_TRUE(items->Enqueue(Item(7, 7 + 3 * kMost), source_, std::nullopt));
  ASSERT_TRUE(items->Begin(std::nullopt));
  for (const uint64_t piece : {0, 1, 2}) {
    EXPECT_FALSE(items->HasRoom()) << piece;
    ASSERT_TRUE(Brings(*items, 7 + piece * kMost, 8 + piece * kMost));
  }
  EXPECT_TRUE(items->HasRoom());
}

TEST_F(DirectItemsTest, StartNoMoreThanWhatIsNeeded) {
  const std::vector<SourceRange> needed = {{3, 4}, {5000, 6000}, {250'000, 260'000}};
  const auto items = DirectItems::Create(3, kMost);
  ASSERT_TRUE(items->Enqueue(Item(3, kBytes), source_, needed));
  EXPECT_TRUE(items->HasRoom());  // the item takes two reads
  ASSERT_TRUE(items->Begin(needed));
  for (const SourceRange& range : needed) EXPECT_TRUE(Brings(*items, range.begin, range.end));
}

TEST_F(DirectItemsTest, GoOnWithWhatIsNeededIfThatIsKnownLater) {
  const std::vector<SourceRange> needed = {{30'000, 80'000}, {250'000, 260'000}};
  const auto items = DirectItems::Create(2, kMost);
  ASSERT_TRUE(items->Enqueue(Item(3, kBytes), source_, std::nullopt));
  ASSERT_TRUE(items->Begin(needed));
  EXPECT_TRUE(Brings(*items, 30'000, 80'000));  // from the two reads that were started
  BreakFile();
  EXPECT_TRUE(Brings(*items, 250'000, 260'000));  // from the third
}

TEST_F(DirectItemsTest, BeginAtTheFirstBytesThatAreNeeded) {
  const std::vector<SourceRange> needed = {{250'000, 260'000}};
  const auto items = DirectItems::Create(2, kMost);
  ASSERT_TRUE(items->Enqueue(Item(3, kBytes), source_, std::nullopt));
  ASSERT_TRUE(items->Begin(needed));
  EXPECT_TRUE(Brings(*items, 250'000, 260'000));
}

TEST_F(DirectItemsTest, BringNothingOfAPieceThatFailsAndTheItemsAfterIt) {
  const auto items = DirectItems::Create(1, kMost);
  const UniqueFd good(::dup(source_->direct.get()));
  ASSERT_TRUE(items->Enqueue(Item(7, 7 + 3 * kMost), source_, std::nullopt));
  ASSERT_TRUE(items->Enqueue(Item(200'000, 210'000), source_, std::nullopt));
  ASSERT_TRUE(items->Begin(std::nullopt));
  ASSERT_TRUE(Brings(*items, 7, 7 + kMost));
  BreakFile();
  EXPECT_TRUE(items->Get(7 + kMost, std::span(room_).first(10)).empty());
  source_->direct = UniqueFd(::dup(good.get()));
  items->End();
  EXPECT_TRUE(items->Begin(std::nullopt));
  EXPECT_TRUE(Brings(*items, 200'000, 210'000));
}

TEST_F(DirectItemsTest, DoNotBeginPastTheEndOfTheFile) {
  const auto items = DirectItems::Create(2, kMost);
  ASSERT_TRUE(items->Enqueue(Item(kBytes, kBytes + 1), source_, std::nullopt));
  EXPECT_FALSE(items->Begin(std::nullopt));
  items->End();
  EXPECT_TRUE(items->empty());
}

}  // namespace
}  // namespace ckptd
