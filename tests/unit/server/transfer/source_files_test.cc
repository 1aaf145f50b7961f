#include "server/transfer/source_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "common/source/open.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/sigbus_guard.h"
#include "tests/testing/offered_memory.h"
#include "tests/testing/page_cache.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {

void PrintTo(IoMode io_mode, std::ostream* out) {
  constexpr const char* kNames[] = {"auto", "map", "buffer", "direct"};
  *out << kNames[static_cast<size_t>(io_mode)];
}

namespace {

constexpr uint64_t kBytes = 1 << 20;

// Of which nothing is in the page cache.
class EmptyObject final : public ReadableObject {
 public:
  EmptyObject() : ReadableObject({}), fd_(::memfd_create("source", MFD_CLOEXEC)) {}
  absl::Status ReadAt(uint64_t, std::span<std::byte>) const override { return absl::OkStatus(); }
  int fd() const override { return fd_.get(); }

 private:
  const UniqueFd fd_;
};

class SourceFilesTest : public ::testing::Test {
 protected:
  SourceFilesTest() {
    world_.AddBytes(0, kBytes, 1);
    world_.Finish(kBytes);
    item_.end = kBytes;
    items_ = {item_};
  }

  // An open file of which `cached` says whether it is in the page cache: an empty one is not, a
  // file in memory is.
  static std::unique_ptr<OpenSource> Open(bool cached, bool mappable, bool direct) {
    auto source = std::make_unique<OpenSource>();
    source->object = std::make_shared<const EmptyObject>();
    source->in_memory = cached;
    if (mappable) {
      void* const address = ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      source->mapping = Mapping(address, kBytes);
    }
    if (direct) source->direct = UniqueFd(::memfd_create("direct", MFD_CLOEXEC));
    return source;
  }
  IoMode IoModeOf(IoMode wanted, const OpenSource& source) const {
    return SourceFiles(world_.index, items_, wanted).ChooseIoMode(source, item_);
  }
  std::shared_ptr<OpenSource> Acquire(IoMode wanted) {
    auto source = SourceFiles(world_.index, items_, wanted).Acquire(0);
    EXPECT_OK(source);
    return source.value_or(std::make_shared<OpenSource>());
  }

  World world_{1, 1};
  WorkItem item_;
  std::vector<WorkItem> items_;
};

TEST_F(SourceFilesTest, WhatIsCachedIsMappedIfItCanBe) {
  EXPECT_EQ(IoModeOf(IoMode::kAuto, *Open(true, true, true)), IoMode::kMap);
  EXPECT_EQ(IoModeOf(IoMode::kAuto, *Open(true, false, true)), IoMode::kBuffer);
}

TEST_F(SourceFilesTest, WhatIsNotCachedIsReadPastTheCacheIfItCanBe) {
  EXPECT_EQ(IoModeOf(IoMode::kAuto, *Open(false, true, true)), IoMode::kDirect);
  EXPECT_EQ(IoModeOf(IoMode::kAuto, *Open(false, true, false)), IoMode::kBuffer);
}

TEST_F(SourceFilesTest, AWayThatWasAskedForIsTakenWhateverIsCached) {
  for (const bool cached : {false, true}) {
    for (const IoMode io_mode : {IoMode::kMap, IoMode::kBuffer, IoMode::kDirect}) {
      EXPECT_EQ(IoModeOf(io_mode, *Open(cached, true, true)), io_mode);
      EXPECT_EQ(IoModeOf(io_mode, *Open(cached, false, false)), IoMode::kBuffer);
    }
  }
}

TEST_F(SourceFilesTest, AFileIsOpenForTheWaysThatMayBeTakenAndNoOther) {
  ASSERT_TRUE(SigbusGuardInForce());
  EXPECT_TRUE(Acquire(IoMode::kAuto)->mapping.valid());
  EXPECT_TRUE(Acquire(IoMode::kMap)->mapping.valid());
  EXPECT_FALSE(Acquire(IoMode::kBuffer)->mapping.valid());
  EXPECT_FALSE(Acquire(IoMode::kDirect)->mapping.valid());
  EXPECT_FALSE(Acquire(IoMode::kMap)->direct.valid());
  EXPECT_FALSE(Acquire(IoMode::kBuffer)->direct.valid());
  // Some file systems do not support O_DIRECT.
  const UniqueFd direct(::open(world_.index.files[0].path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  EXPECT_EQ(Acquire(IoMode::kAuto)->direct.valid(), direct.valid());
  EXPECT_EQ(Acquire(IoMode::kDirect)->direct.valid(), direct.valid());
}

TEST_F(SourceFilesTest, MemoryOfAProcessIsReadThroughTheBufferWhateverWasAskedFor) {
  const std::vector<std::byte> data(kBytes, std::byte{7});
  const std::string json = R"({"a":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}})";
  const OfferedMemory offer(json, {{data.data(), kBytes}});
  const auto index = OpenCheckpoint(offer.path());
  ASSERT_OK(index);
  WorkItem item;
  item.begin = index->tensors[0].pieces[0].offset;
  item.end = item.begin + kBytes;
  const std::vector<WorkItem> items = {item};
  for (const IoMode io_mode : {IoMode::kAuto, IoMode::kMap, IoMode::kBuffer, IoMode::kDirect}) {
    SourceFiles files(*index, items, io_mode);
    BlockReader reader(files, 2);
    ASSERT_OK(reader.Begin(item));
    EXPECT_EQ(reader.io_mode(), IoMode::kBuffer);
    bool equal = false;
    const auto compare = [&equal](std::span<const std::byte> found) {
      equal = std::count(found.begin(), found.end(), std::byte{7}) == 5000;
    };
    EXPECT_OK(reader.WithBlock(item.begin + 1000, 5000, compare));
    EXPECT_TRUE(equal);
    reader.End();
  }
}

TEST_F(SourceFilesTest, AFileThatWasJustWrittenIsCached) {
  const auto source = Acquire(IoMode::kAuto);
  EXPECT_TRUE(SourceFiles::Cached(*source, item_));
  EXPECT_EQ(IoModeOf(IoMode::kAuto, *source), IoMode::kMap);
}

TEST_F(SourceFilesTest, AskingWhetherAFileIsCachedBringsNoneOfItIntoTheCache) {
  const std::string& path = world_.index.files[0].path;
  if (!DropFromPageCache(path)) GTEST_SKIP() << path << " stays in the page cache";
  const auto source = Acquire(IoMode::kAuto);
  if (!IsUncached(source->object->fd())) GTEST_SKIP() << "opening it brings some of it";
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(SourceFiles::Cached(*source, item_));
  EXPECT_TRUE(IsUncached(source->object->fd()));
}

}  // namespace
}  // namespace ckptd
