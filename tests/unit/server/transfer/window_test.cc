// A group's transfer in windows does what the whole plans of its ranks say.
#include "server/transfer/window.h"

#include <gtest/gtest.h>

#include <numeric>

#include "server/transfer/frame_receiver.h"
#include "server/transfer/transfer.h"
#include "tests/testing/frame_sinks.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_folder.h"

namespace ckptd {
namespace {

constexpr size_t kRanks = 6;

struct WindowCase {
  uint64_t seed = 1;
  size_t layout = 0;
  uint64_t copies = 1;  // per window
};

class Windows : public testing::TestWithParam<WindowCase> {
 protected:
  void SetUp() override {
    RandomSource source(GetParam().seed, 80);
    WriteFiles(folder_.path(), source.index);
    index_ = std::make_shared<const CheckpointIndex>(std::move(source.index));
    ASSERT_OK_AND_ASSIGN(const LayoutRules rules,
                         LayoutRules::Parse(SixRankLayouts()[GetParam().layout]));
    std::vector<uint32_t> numbers(kRanks);
    std::iota(numbers.begin(), numbers.end(), 0u);
    ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index_, numbers));
    ASSERT_OK_AND_ASSIGN(group_, GroupPlan::Make(index_, cohorts, {}));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_OK_AND_ASSIGN(const RankLayout layout, rules.ForRank(*index_, rank));
      ASSERT_OK_AND_ASSIGN(plans_.emplace_back(), PlanRank(*index_, layout, {}));
      ranks_.push_back(group_->Find(rank));
    }
    expected_ = Slabs();
    const std::vector<TransferTarget> targets = Targets(expected_, /*whole=*/true);
    TransferProgress progress(kRanks);
    ASSERT_OK_AND_ASSIGN(whole_, RunTransfer(*index_, targets, {}, progress));
    options_.window_copies = GetParam().copies;
    options_.threads = static_cast<unsigned>(1 + GetParam().seed % 4);
  }

  using Memory = std::vector<std::vector<std::byte>>;

  Memory Slabs() const {
    Memory slabs;
    for (const RankPlan& plan : plans_) slabs.emplace_back(plan.slab_bytes, std::byte{0xee});
    return slabs;
  }
  std::vector<TransferTarget> Targets(Memory& slabs, bool whole) const {
    std::vector<TransferTarget> targets;
    for (size_t r = 0; r < kRanks; ++r) {
      targets.push_back({whole ? &plans_[r] : nullptr, {{slabs[r]}}, nullptr});
    }
    return targets;
  }

  TempFolder folder_;
  std::shared_ptr<const CheckpointIndex> index_;
  absl::StatusOr<GroupPlan> group_ = absl::UnknownError("not planned");
  std::vector<RankPlan> plans_;
  std::vector<const PlannedRank*> ranks_;
  Memory expected_;
  TransferResult whole_;
  TransferOptions options_;
};

TEST_P(Windows, PlaceEveryByteAndReadItOnce) {
  Memory slabs = Slabs();
  const std::vector<TransferTarget> targets = Targets(slabs, /*whole=*/false);
  TransferProgress progress(kRanks);
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(*group_, ranks_, targets, options_, progress));
  EXPECT_EQ(slabs, expected_);
  EXPECT_EQ(result.digests, whole_.digests);
  EXPECT_EQ(result.done, whole_.done);
  EXPECT_EQ(result.storage_bytes, whole_.storage_bytes);
}

TEST_P(Windows, AreDividedAmongReaders) {
  Memory slabs = Slabs();
  const std::vector<TransferTarget> targets = Targets(slabs, /*whole=*/false);
  options_.digests = false;
  options_.parts = 5;
  uint64_t storage_bytes = 0;
  std::vector<uint64_t> done(kRanks);
  for (options_.part = 0; options_.part < options_.parts; ++options_.part) {
    TransferProgress progress(kRanks);
    ASSERT_OK_AND_ASSIGN(const TransferResult result,
                         RunTransfer(*group_, ranks_, targets, options_, progress));
    storage_bytes += result.storage_bytes;
    for (size_t r = 0; r < kRanks; ++r) done[r] += result.done[r];
  }
  EXPECT_EQ(slabs, expected_);
  EXPECT_EQ(done, whole_.done);
  EXPECT_EQ(storage_bytes, whole_.storage_bytes);
}

TEST_P(Windows, AreSentToRanksElsewhere) {
  Memory slabs = Slabs();
  std::vector<TransferTarget> targets = Targets(slabs, /*whole=*/false);
  std::vector<std::unique_ptr<FrameReceiver>> receivers(kRanks);
  std::vector<std::unique_ptr<DirectSink>> sinks(kRanks);
  for (const size_t r : {1, 2, 4}) {
    ASSERT_OK_AND_ASSIGN(receivers[r],
                         FrameReceiver::Make(index_, plans_[r], targets[r].slab, true));
    sinks[r] = std::make_unique<DirectSink>(*receivers[r]);
    targets[r].slab = {};
    targets[r].sink = sinks[r].get();
  }
  TransferProgress progress(kRanks);
  ASSERT_OK_AND_ASSIGN(const TransferResult result,
                       RunTransfer(*group_, ranks_, targets, options_, progress));
  EXPECT_EQ(slabs, expected_);
  for (size_t r = 0; r < kRanks; ++r) {
    if (sinks[r] == nullptr) {
      EXPECT_EQ(result.digests[r], whole_.digests[r]);
      continue;
    }
    EXPECT_EQ(sinks[r]->finished, 1);
    ASSERT_OK(receivers[r]->Close(std::chrono::seconds(60)));
    EXPECT_EQ(receivers[r]->Digests().value(), whole_.digests[r]);
  }
}

std::vector<WindowCase> Cases() {
  std::vector<WindowCase> cases;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    for (size_t layout = 0; layout < SixRankLayouts().size(); ++layout) {
      for (const uint64_t copies : {1, 40, 1 << 20}) cases.push_back({seed, layout, copies});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Groups, Windows, testing::ValuesIn(Cases()), [](const auto& test) {
  return std::to_string(test.param.seed) + "Layout" + std::to_string(test.param.layout) + "By" +
         std::to_string(test.param.copies);
});

}  // namespace
}  // namespace ckptd
