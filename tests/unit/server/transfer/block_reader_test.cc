#include "server/transfer/block_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "common/base/reasons.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/server/transfer/world.h"

namespace ckptd {
namespace {

constexpr uint64_t kBytes = 1 << 20;

// One file of 1 MiB, read by way of a mapping or of the buffer.
class BlockReaderTest : public ::testing::TestWithParam<bool> {
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
  BlockReader reader(files);
  ASSERT_OK(reader.Begin(item_));
  bool equal = false;
  const auto compare = [&](std::span<const std::byte> data) {
    equal = std::equal(data.begin(), data.end(), world_.Content(0).begin() + 1000);
  };
  ASSERT_OK(reader.Use(1000, 5000, compare));
  EXPECT_TRUE(equal);
}

TEST_P(BlockReaderTest, ReportsAFileThatWasCutSinceTheItemBegan) {
  SourceFiles files(world_.index, items_, GetParam());
  BlockReader reader(files);
  ASSERT_OK(reader.Begin(item_));
  std::filesystem::resize_file(world_.index.files[0].path, 4096);
  // Reads all of the block, as placing it would.
  std::vector<std::byte> copy(8192);
  const auto use = [&copy](std::span<const std::byte> data) {
    std::copy(data.begin(), data.end(), copy.begin());
  };
  EXPECT_EQ(ReasonOf(reader.Use(0, 8192, use)), reason::kSourceChanged);
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

INSTANTIATE_TEST_SUITE_P(By, BlockReaderTest, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Mapping" : "Buffer"; });

}  // namespace
}  // namespace ckptd
