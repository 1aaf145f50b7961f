// A checkpoint that 64 ranks have saved, loaded by 6.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "common/plan/group_plan.h"
#include "common/source/formats/dcp/format.h"
#include "tests/testing/dcp_writer.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint64_t kSavers = 64;
constexpr uint32_t kLoaders = 6;
constexpr uint64_t kTensors = 24;

// Each rank has some rows of each tensor, by torch's rule; the last ones have fewer, or none.
CheckpointIndex Saved() {
  DcpWriter writer;
  for (uint64_t t = 0; t < kTensors; ++t) {
    const uint64_t rows = 100 + 37 * (t % 5);
    const uint64_t each = (rows + kSavers - 1) / kSavers;
    std::vector<DcpChunk> chunks;
    for (uint64_t rank = 0; rank < kSavers; ++rank) {
      const uint64_t begin = std::min(rows, rank * each);
      const uint64_t count = std::min(rows, begin + each) - begin;
      chunks.push_back({fmt::format("__{}_0.distcp", rank), {begin, 0}, {count, 6},
                        std::string(count * 6 * 4, 'x')});
    }
    const std::string name = fmt::format("layers.{:02}.w", t);
    writer.AddTensor("model." + name, {"model", name}, Dtype::kF32, {rows, 6}, chunks);
  }
  MemoryStorage storage;
  writer.Write(storage, "/d");
  return DcpFormat().ReadIndex(storage, ListSource(storage, "/d").value()).value().index;
}

class SavedByMany : public testing::Test {
 protected:
  void Plan(const std::string& layout) {
    const auto rules = LayoutRules::Parse(layout).value();
    std::vector<uint32_t> ranks(kLoaders);
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto cohorts = rules.ForRanks(*index_, ranks).value();
    group_ = std::make_unique<GroupPlan>(GroupPlan::Make(index_, cohorts, {}).value());
  }
  // Bytes of tensors, per file.
  std::vector<uint64_t> Needed() const {
    std::vector<uint64_t> bytes(index_->files.size());
    for (const TensorEntry& tensor : index_->tensors) {
      for (const Piece& piece : tensor.pieces) bytes[piece.file] += piece.bytes;
    }
    return bytes;
  }

  const std::shared_ptr<const CheckpointIndex> index_ =
      std::make_shared<const CheckpointIndex>(Saved());
  std::unique_ptr<GroupPlan> group_;
};

TEST_F(SavedByMany, IsReadByteForByteOnce) {
  ASSERT_EQ(index_->tensors.size(), kTensors);
  for (const char* layout : {"fsdp:6", "hsdp:2x3", "replicate:6"}) {
    Plan(layout);
    EXPECT_EQ(group_->ReadBytes(), Needed()) << layout;
  }
}

TEST_F(SavedByMany, IsReadByEachRankInTheOrderOfTheFiles) {
  Plan("fsdp:6");
  for (const PlannedRank& rank : group_->ranks()) {
    std::vector<const PlannedRank*> one = {&rank};
    for (const PlanWindow& window : group_->Windows(one, UINT64_MAX)) {
      ASSERT_OK_AND_ASSIGN(const RankPlan plan, group_->OpenWindow(window).PlanOf(rank));
      EXPECT_TRUE(std::is_sorted(plan.ops.begin(), plan.ops.end(),
                                 [](const CopyOp& a, const CopyOp& b) {
                                   return std::pair(a.file, a.file_offset) <
                                          std::pair(b.file, b.file_offset);
                                 }));
    }
  }
}

// A plan that is cut into windows goes through every file once, from its begin to its end.
TEST_F(SavedByMany, IsCutIntoWindowsThatGoForwardInEveryFile) {
  Plan("fsdp:6");
  std::vector<const PlannedRank*> ranks;
  for (const PlannedRank& rank : group_->ranks()) ranks.push_back(&rank);
  const std::vector<PlanWindow> windows = group_->Windows(ranks, 1);
  EXPECT_EQ(windows.size(), kTensors);
  std::vector<uint64_t> reached(index_->files.size());
  for (const PlanWindow& window : windows) {
    const GroupPlan::Open open = group_->OpenWindow(window);
    std::vector<uint64_t> ends = reached;
    for (const PlannedRank* rank : ranks) {
      ASSERT_OK_AND_ASSIGN(const RankPlan part, open.PlanOf(*rank));
      for (const CopyOp& op : part.ops) {
        EXPECT_GE(op.file_offset, reached[op.file]);
        ends[op.file] = std::max(ends[op.file], op.file_end());
      }
    }
    reached = ends;
  }
}

}  // namespace
}  // namespace ckptd
