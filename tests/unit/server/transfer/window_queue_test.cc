#include "server/transfer/window_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// One tensor of one rank: `rows` of 1 MiB, of which it takes the first `columns` elements.
class WindowQueueTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kColumns = 1 << 18;

  void Make(uint64_t rows, uint64_t columns) {
    const uint64_t offset = world_.AddBytes(0, rows << 20, 1);
    world_.AddTensor(0, 0, offset, Dtype::kF32, Dtype::kF32, {1, rows, kColumns},
                     {{}, {1, rows, columns}});
    world_.Finish(rows << 20);
    end_ = ((rows - 1) << 20) + columns * 4;
  }

  // How many items each claim of `most` gets. They follow each other and none is missing.
  std::vector<size_t> Runs(size_t most) {
    const WindowSource source = WholePlans(world_.index, world_.targets);
    const std::vector<SlabMap> slabs = {SlabMap(world_.targets[0].slab)};
    SourceFiles files(world_.index, {}, IoMode::kBuffer);
    const TransferOptions options;
    WindowQueue queue(source, options, slabs, files);
    EXPECT_OK(queue.Start());
    std::vector<size_t> runs;
    uint64_t at = 0;
    while (true) {
      const WindowQueue::Claimed claimed = queue.Next(most).value();
      if (claimed.window == nullptr) break;
      for (const WorkItem& item : claimed.items) {
        EXPECT_EQ(item.begin, at);
        at = item.end;
        longest_ = std::max(longest_, item.end - item.begin);
      }
      runs.push_back(claimed.items.size());
    }
    EXPECT_EQ(at, end_) << "all that is needed";
    return runs;
  }

  World world_{1, 1};
  uint64_t end_ = 0;      // end of the needed bytes
  uint64_t longest_ = 0;  // bytes of the longest item
};

TEST_F(WindowQueueTest, HandsOutRunsThatFollowEachOther) {
  Make(11, kColumns);
  EXPECT_THAT(Runs(4), ElementsAre(4, 4, 3));
  EXPECT_EQ(Runs(1), std::vector<size_t>(11, 1));
}

TEST_F(WindowQueueTest, HandsOutLongItemsOneByOne) {
  Make(16, kColumns / 4);
  const std::vector<size_t> runs = Runs(4);
  ASSERT_EQ(longest_, 4 * kItemBytes) << "rows that are cut so that digest blocks are whole";
  EXPECT_THAT(runs, Each(1U));
}

}  // namespace
}  // namespace ckptd
