#include "server/transfer/block_reader.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "server/transfer/sigbus_guard.h"
#include "tests/testing/page_cache.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// One file of 1 MiB, read in each mode.
class BlockReaderTest : public ::testing::TestWithParam<IoMode> {
 protected:
  void SetUp() override {
    world_.AddBytes(0, kBytes, 1);
    world_.Finish(kBytes);
    item_.end = kBytes;
    items_ = {item_};
  }

  World world_{1, 1};
  WorkItem item_;
  std::vector<WorkItem> items_;
};

TEST_P(BlockReaderTest, ShowsTheBytesOfTheFile) {
  SourceFiles files(world_.index, items_, GetParam());
  BlockReader reader(files, 2);
  ASSERT_OK(reader.Begin(item_));
  bool equal = false;
  const auto compare = [&](std::span<const std::byte> data) {
    equal = std::equal(data.begin(), data.end(), world_.Content(0).begin() + 1000);
  };
  ASSERT_OK(reader.WithBlock(1000, 5000, compare));
  EXPECT_TRUE(equal);
}

TEST(ReadTo, BringsCachedBytesToWhereTheyBelong) {
  for (const IoMode io_mode : {IoMode::kAuto, IoMode::kBuffer}) {
    World world(1, 1);
    world.AddBytes(0, kBytes, 1);
    world.Finish(kBytes);
    WorkItem item;
    item.end = kBytes;
    const std::vector<WorkItem> items = {item};
    SourceFiles files(world.index, items, io_mode);
    BlockReader reader(files, 2);
    ASSERT_OK(reader.Begin(item, true));
    ASSERT_EQ(reader.io_mode(), IoMode::kBuffer);
    std::vector<std::byte> place(2 * kReadBlockBytes + 77);
    ASSERT_OK(reader.ReadTo(1000, place));
    EXPECT_TRUE(std::equal(place.begin(), place.end(), world.Content(0).begin() + 1000));
    std::filesystem::resize_file(world.index.files[0].path, 4096);
    EXPECT_EQ(ReasonOf(reader.ReadTo(0, place)), reason::kSourceChanged);
  }
}

TEST_P(BlockReaderTest, MapsWhatIsBroughtElsewhereOnlyIfNothingElseMayBe) {
  SourceFiles files(world_.index, items_, GetParam());
  BlockReader reader(files, 2);
  ASSERT_OK(reader.Begin(item_, true));
  EXPECT_EQ(reader.io_mode() == IoMode::kMap, GetParam() == IoMode::kMap);
}

// A clock that each call advances by `step`, so that each touch of a mapping takes that long.
struct FakeClock {
  static std::chrono::steady_clock::time_point Now() { return time += step; }
  static inline std::chrono::steady_clock::time_point time;
  static inline std::chrono::nanoseconds step{0};
};

// The mode in which a cached MiB of a file of `file_bytes` is read.
IoMode IoModeOfCached(uint64_t file_bytes, IoMode io_mode, std::chrono::nanoseconds touch) {
  const TempFolder folder;
  const std::string path = folder.Write("sparse", std::string(kBytes, 'x'));
  std::filesystem::resize_file(path, file_bytes);
  CheckpointIndex index;
  index.files.push_back({.path = path, .bytes = file_bytes});
  WorkItem item;
  item.end = kBytes;
  const std::vector<WorkItem> items = {item};
  SourceFiles files(index, items, io_mode);
  FakeClock::step = touch;
  BlockReader reader(files, 2, MapProbe(FakeClock::Now));
  EXPECT_TRUE(reader.Begin(item).ok());
  return reader.io_mode();
}

TEST(CachedBytes, AreCopiedOutOfTheCacheWhereMappingIsSlow) {
  if (!SigbusGuardInForce()) GTEST_SKIP() << "nothing is mapped: another handler of SIGBUS";
  EXPECT_EQ(IoModeOfCached(kMinProbedFileBytes, IoMode::kAuto, kSlowFault), IoMode::kMap);
  EXPECT_EQ(IoModeOfCached(kMinProbedFileBytes, IoMode::kAuto, 2 * kSlowFault), IoMode::kBuffer);
}

TEST(CachedBytes, AreMappedWhateverItTakesIfSaidSoOrOfASmallFile) {
  if (!SigbusGuardInForce()) GTEST_SKIP() << "nothing is mapped: another handler of SIGBUS";
  EXPECT_EQ(IoModeOfCached(kMinProbedFileBytes, IoMode::kMap, 2 * kSlowFault), IoMode::kMap);
  EXPECT_EQ(IoModeOfCached(kMinProbedFileBytes - 1, IoMode::kAuto, 2 * kSlowFault), IoMode::kMap);
}

TEST(CachedBytes, AreReadAsWasFoundAheadWhateverHappenedSince) {
  if (!SigbusGuardInForce()) GTEST_SKIP() << "nothing is mapped: another handler of SIGBUS";
  const TempFolder folder;
  const std::string path = folder.Write("file", std::string(4 * kBytes, 'x'));
  CheckpointIndex index;
  index.files.push_back({.path = path, .bytes = 4 * kBytes});
  std::vector<WorkItem> items(2);
  items[0].end = kBytes;
  items[1].begin = 3 * kBytes;
  items[1].end = 4 * kBytes;
  SourceFiles files(index, items, IoMode::kAuto);
  BlockReader reader(files, 2);
  for (const WorkItem& item : items) ASSERT_FALSE(reader.Prefetch(item));
  if (!DropFromPageCache(path)) GTEST_SKIP() << path << " stays in the page cache";
  for (const WorkItem& item : items) {
    ASSERT_OK(reader.Begin(item));
    EXPECT_EQ(reader.io_mode(), IoMode::kMap) << item.begin;  // a second look would find it gone
    reader.End();
  }
}

TEST_P(BlockReaderTest, ReportsAFileThatWasCutSinceTheItemBegan) {
  SourceFiles files(world_.index, items_, GetParam());
  BlockReader reader(files, 2);
  ASSERT_OK(reader.Begin(item_));
  std::filesystem::resize_file(world_.index.files[0].path, 4096);
  // Reads all of the block, as placing it would.
  std::vector<std::byte> copy(8192);
  const auto use = [&copy](std::span<const std::byte> data) {
    std::copy(data.begin(), data.end(), copy.begin());
  };
  // A direct read of the item ends before Begin returns.
  const bool before = reader.io_mode() == IoMode::kDirect;
  EXPECT_EQ(ReasonOf(reader.WithBlock(0, 8192, use)), before ? "" : reason::kSourceChanged);
}

TEST_P(BlockReaderTest, ReportsAFileThatWasCutSinceItWasOpened) {
  SourceFiles files(world_.index, items_, GetParam());
  ASSERT_OK(files.Acquire(0));
  std::filesystem::resize_file(world_.index.files[0].path, 4096);
  BlockReader reader(files, 2);
  ASSERT_OK(reader.Begin(item_));
  std::vector<std::byte> copy(8192);
  const auto use = [&copy](std::span<const std::byte> data) {
    std::copy(data.begin(), data.end(), copy.begin());
  };
  EXPECT_EQ(ReasonOf(reader.WithBlock(0, 8192, use)), reason::kSourceChanged);
}

TEST_P(BlockReaderTest, ShowsItemsThatWereReadAheadInTheirOrder) {
  items_.clear();
  for (uint64_t begin = 0; begin < kBytes; begin += 100'001) {
    items_.push_back(item_);
    items_.back().begin = begin;
    items_.back().end = std::min(begin + 100'001, kBytes);
  }
  SourceFiles files(world_.index, items_, GetParam());
  BlockReader reader(files, 3);
  size_t prefetched = 0;
  std::vector<std::byte> all;
  for (size_t i = 0; i < items_.size(); ++i) {
    prefetched = std::max(prefetched, i);
    while (prefetched < items_.size() && reader.Prefetch(items_[prefetched])) ++prefetched;
    ASSERT_OK(reader.Begin(items_[i]));
    const auto bytes = static_cast<size_t>(items_[i].end - items_[i].begin);
    ASSERT_OK(reader.WithBlock(items_[i].begin, bytes,
                               [&all](std::span<const std::byte> data) {
                                 all.insert(all.end(), data.begin(), data.end());
                               }));
    reader.End();
    prefetched = std::max(prefetched, i + 1);
  }
  EXPECT_TRUE(all == world_.Content(0));
}

// io_uring needs a descriptor. A process that has none left is like one on a kernel without it.
TEST(DirectReading, GivesWayToTheBufferWithoutIoUring) {
  World world{1, 1};
  world.AddBytes(0, kBytes, 1);
  world.Finish(kBytes);
  WorkItem item;
  item.end = kBytes;
  const std::vector<WorkItem> items = {item};
  SourceFiles files(world.index, items, IoMode::kDirect);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<OpenSource> source, files.Acquire(0));
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  BlockReader reader(files, 2);
  const absl::Status begun = reader.Begin(item);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_OK(begun);
  EXPECT_EQ(reader.io_mode(), IoMode::kBuffer);
  bool equal = false;
  ASSERT_OK(reader.WithBlock(0, 5000, [&](std::span<const std::byte> data) {
    equal = std::equal(data.begin(), data.end(), world.Content(0).begin());
  }));
  EXPECT_TRUE(equal);
}

TEST(DirectReading, HappensWhereTheSystemOffersIt) {
  World world{1, 1};
  world.AddBytes(0, kBytes, 1);
  world.Finish(kBytes);
  WorkItem item;
  item.end = kBytes;
  const std::vector<WorkItem> items = {item};
  SourceFiles files(world.index, items, IoMode::kDirect);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<OpenSource> source, files.Acquire(0));
  BlockReader reader(files, 2);
  ASSERT_OK(reader.Begin(item));
  const bool offered = source->direct.valid() && DirectReads::Create(1, kItemBytes) != nullptr;
  EXPECT_EQ(reader.io_mode(), offered ? IoMode::kDirect : IoMode::kBuffer);
}

// One file of several MiB, in one item that is longer than one direct read, from an odd offset to
// the end of the file.
class LongItem : public ::testing::TestWithParam<IoMode> {
 protected:
  static constexpr uint64_t kBegin = 1001;
  static constexpr uint64_t kEnd = 3 * kItemBytes + 100'001;

  void SetUp() override {
    world_.AddBytes(0, kEnd, 1);
    world_.Finish(kItemBytes);
    items_[0].begin = kBegin;
    items_[0].end = kEnd;
    files_ = std::make_unique<SourceFiles>(world_.index, items_, GetParam());
    source_ = files_->Acquire(0).value();
    if (GetParam() == IoMode::kMap) offered_ = source_->mapping.valid();
    if (GetParam() == IoMode::kDirect) {
      offered_ = source_->direct.valid() && DirectReads::Create(1, kItemBytes) != nullptr;
    }
  }
  // Uses all of it in blocks that do not match the reads. Returns whether the bytes are right.
  absl::StatusOr<bool> UseAll(BlockReader& reader) {
    constexpr size_t kBlock = kReadBlockBytes - 24;
    uint64_t right = 0;
    for (uint64_t at = kBegin; at < kEnd; at += kBlock) {
      const size_t bytes = std::min<uint64_t>(kBlock, kEnd - at);
      const auto compare = [&](std::span<const std::byte> data) {
        if (!std::equal(data.begin(), data.end(), world_.Content(0).begin() + at)) return;
        right += data.size();
      };
      CKPTD_RETURN_IF_ERROR(reader.WithBlock(at, bytes, compare));
    }
    return right == kEnd - kBegin;
  }

  World world_{1, 1};
  std::vector<WorkItem> items_ = std::vector<WorkItem>(1);
  std::unique_ptr<SourceFiles> files_;
  std::shared_ptr<OpenSource> source_;
  bool offered_ = true;  // whether this system has the mode
};

TEST_P(LongItem, IsShownWhole) {
  for (const size_t direct_reads : {1, 2, 8}) {
    for (const bool ahead : {false, true}) {
      BlockReader reader(*files_, direct_reads);
      if (ahead) reader.Prefetch(items_[0]);
      ASSERT_OK(reader.Begin(items_[0]));
      ASSERT_OK_AND_ASSIGN(const bool equal, UseAll(reader));
      EXPECT_TRUE(equal) << direct_reads << ahead;
    }
  }
}

TEST_P(LongItem, IsReadInOneWayToItsEnd) {
  BlockReader reader(*files_, 2);
  ASSERT_OK(reader.Begin(items_[0]));
  ASSERT_OK(UseAll(reader));
  EXPECT_EQ(reader.io_mode(), offered_ ? GetParam() : IoMode::kBuffer);
}

TEST_P(LongItem, GoesOnThroughTheBufferWhereDirectReadsFail) {
  BlockReader reader(*files_, 1);
  ASSERT_OK(reader.Begin(items_[0]));
  const bool direct = reader.io_mode() == IoMode::kDirect;
  source_->direct = UniqueFd();  // with one slot nothing was prefetched
  ASSERT_OK_AND_ASSIGN(const bool equal, UseAll(reader));
  EXPECT_TRUE(equal);
  EXPECT_EQ(reader.io_mode(), direct ? IoMode::kBuffer : GetParam());
  reader.End();
}

TEST_P(LongItem, OfAFileThatIsCutMeanwhileIsAChangedSource) {
  BlockReader reader(*files_, 1);
  ASSERT_OK(reader.Begin(items_[0]));
  std::filesystem::resize_file(world_.index.files[0].path, 2 * kItemBytes);
  EXPECT_EQ(ReasonOf(UseAll(reader).status()), reason::kSourceChanged);
}

TEST_P(LongItem, LeavesRoomForTheNextOneOnceItsEndIsInFlight) {
  BlockReader reader(*files_, 2);
  ASSERT_OK(reader.Begin(items_[0]));
  EXPECT_FALSE(reader.HasRoom());
  ASSERT_OK(UseAll(reader));
  EXPECT_EQ(reader.HasRoom(), reader.io_mode() == IoMode::kDirect);
}

TEST_P(BlockReaderTest, ClosesAFileAfterItsLastItem) {
  SourceFiles files(world_.index, items_, GetParam());
  std::weak_ptr<OpenSource> open;
  {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<OpenSource> source, files.Acquire(0));
    open = source;
  }
  ASSERT_FALSE(open.expired());
  files.ItemDone(0);
  EXPECT_TRUE(open.expired());
}

std::string NameOf(const ::testing::TestParamInfo<IoMode>& test) {
  if (test.param == IoMode::kMap) return "Mapping";
  return test.param == IoMode::kBuffer ? "Buffer" : "Direct";
}

INSTANTIATE_TEST_SUITE_P(By, BlockReaderTest,
                         ::testing::Values(IoMode::kMap, IoMode::kBuffer, IoMode::kDirect),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(By, LongItem,
                         ::testing::Values(IoMode::kMap, IoMode::kBuffer, IoMode::kDirect),
                         NameOf);

}  // namespace
}  // namespace ckptd
