// Items that are read straight into staging memory, and bytes that are written there once for
// several ranks.
#include "server/transfer/item_placer.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/transfer/transfer.h"
#include "tests/testing/comms_in_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/transfer_world.h"

namespace ckptd {
namespace {

constexpr uint64_t kRow = 1000;   // elements
constexpr uint64_t kRows = 400;

// A file of rows of F32. What is read is in the page cache.
class ReadToItsPlace : public ::testing::Test {
 protected:
  void SetUp() override { at_ = world_.AddBytes(0, kRows * kRow * 4, 3); }
  void Add(size_t rank, const Box3& box, Dtype to = Dtype::kF32) {
    world_.AddTensor(rank, 0, at_, Dtype::kF32, to, {1, kRows, kRow}, box);
  }
  static Box3 Rows(uint64_t from, uint64_t count) { return {{0, from, 0}, {1, count, kRow}}; }

  // Loads everything. Returns the source bytes that were read through a mapping.
  uint64_t Mapped() {
    world_.Finish(1 << 20);
    std::vector<std::shared_ptr<BytesInProcess>> memory;
    std::vector<TransferTarget> targets;
    for (const RankPlan& plan : world_.plans) {
      memory.push_back(std::make_shared<BytesInProcess>(plan.slab_bytes, std::byte{0}));
      targets.push_back({&plan, {{}, memory.back()}, nullptr});
    }
    TransferProgress progress(targets.size());
    TransferOptions options;
    options.digests = digests_;
    const auto result = RunTransfer(world_.index, targets, options, progress);
    EXPECT_OK(result);
    for (size_t rank = 0; rank < targets.size(); ++rank) {
      for (size_t t = 0; t < world_.plans[rank].tensors.size(); ++t) {
        const PlannedTensor& tensor = world_.plans[rank].tensors[t];
        const auto begin = memory[rank]->content().begin() + static_cast<long>(tensor.offset);
        EXPECT_TRUE(std::equal(world_.expected[rank][t].begin(), world_.expected[rank][t].end(),
                               begin)) << tensor.name;
      }
    }
    for (const auto& slab : memory) written_ += slab->written;
    return progress.mapped_bytes;
  }

  World world_{1, 2};
  uint64_t at_ = 0;
  bool digests_ = false;
  uint64_t written_ = 0;  // bytes written into staging memory
};

TEST_F(ReadToItsPlace, IsWhatEachRankTakesAsItIs) {
  Add(0, Rows(0, 150));
  Add(1, Rows(150, 250));
  EXPECT_EQ(Mapped(), 0U);
}

TEST_F(ReadToItsPlace, IsThatWithDigestsToo) {
  digests_ = true;
  Add(0, Rows(0, 150));
  Add(1, Rows(150, 250));
  EXPECT_EQ(Mapped(), 0U);
}

TEST_F(ReadToItsPlace, IsWhatTwoRanksTake) {
  Add(0, Rows(0, 400));
  Add(1, Rows(0, 400));
  EXPECT_EQ(Mapped(), 0U);
  EXPECT_EQ(written_, kRows * kRow * 4);
}

TEST_F(ReadToItsPlace, IsNotWhatOverlaps) {
  Add(0, Rows(0, 250));
  Add(1, Rows(150, 250));
  EXPECT_GT(Mapped(), 0U);
}

TEST_F(ReadToItsPlace, IsNotWhatIsCast) {
  Add(0, Rows(0, 400), Dtype::kBF16);
  EXPECT_EQ(Mapped(), kRows * kRow * 4);
}

TEST_F(ReadToItsPlace, IsNotWhatIsTurnedRound) {
  world_.big_endian = true;
  Add(0, Rows(0, 400));
  EXPECT_EQ(Mapped(), kRows * kRow * 4);
}

TEST_F(ReadToItsPlace, IsNotWhatIsStrided) {
  Add(0, {{0, 0, 0}, {1, kRows, kRow / 2}});
  EXPECT_GT(Mapped(), 0U);
}

TEST_F(ReadToItsPlace, IsNotWhatComesInManySmallPieces) {
  for (uint64_t row = 0; row < kRows; ++row) Add(row % 2, Rows(row, 1));
  EXPECT_EQ(Mapped(), kRows * kRow * 4);
}

class WrittenOnce : public ReadToItsPlace {};

TEST_F(WrittenOnce, ForTwoRanksIsWhatIsCast) {
  digests_ = true;
  Add(0, Rows(0, 400), Dtype::kBF16);
  Add(1, Rows(0, 400), Dtype::kBF16);
  EXPECT_EQ(Mapped(), kRows * kRow * 4);
  EXPECT_EQ(written_, kRows * kRow * 2);
}

TEST_F(WrittenOnce, ForTwoRanksIsNotWhatIsSmall) {
  Add(0, Rows(0, 5));
  Add(1, Rows(0, 5));
  Mapped();
  EXPECT_EQ(written_, 2 * 5 * kRow * 4);
}

}  // namespace
}  // namespace ckptd
