#include "server/transfer/slab_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/plan/group_plan.h"
#include "tests/testing/random_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

struct SpanCase {
  uint64_t seed = 1;
  size_t layout = 0;
};

class SlabSpansOf : public testing::TestWithParam<SpanCase> {
 protected:
  void SetUp() override {
    RandomSource source(GetParam().seed, 80);
    index_ = std::make_shared<const CheckpointIndex>(std::move(source.index));
    ASSERT_OK_AND_ASSIGN(const LayoutRules rules,
                         LayoutRules::Parse(SixRankLayouts()[GetParam().layout]));
    for (uint32_t rank = 0; rank < 6; ++rank) {
      ASSERT_OK_AND_ASSIGN(const RankLayout layout, rules.ForRank(*index_, rank));
      ASSERT_OK_AND_ASSIGN(plans_.emplace_back(), PlanRank(*index_, layout, {}));
    }
    std::vector<uint32_t> numbers(6);
    std::iota(numbers.begin(), numbers.end(), 0u);
    ASSERT_OK_AND_ASSIGN(const auto cohorts, rules.ForRanks(*index_, numbers));
    ASSERT_OK_AND_ASSIGN(group_, GroupPlan::Make(index_, cohorts, {}));
  }

  std::shared_ptr<const CheckpointIndex> index_;
  std::vector<RankPlan> plans_;
  absl::StatusOr<GroupPlan> group_ = absl::UnknownError("not planned");
};

TEST_P(SlabSpansOf, AllStepsTogetherAreEveryByteOfEveryTensorOnce) {
  const ScatterOrder order = OrderScatter(*index_, {200, 5});
  for (const RankPlan& plan : plans_) {
    // 0: padding, 1: a byte of a tensor. The spans count it down.
    std::vector<int> left(plan.slab_bytes, 0);
    for (const PlannedTensor& tensor : plan.tensors) {
      std::fill_n(left.begin() + static_cast<ptrdiff_t>(tensor.offset), tensor.bytes, 1);
    }
    const std::vector<int> tensors = left;
    ASSERT_OK_AND_ASSIGN(const SlabSpans spans, SlabSpans::Make(plan));
    uint64_t bytes = 0;
    for (const ScatterStep& step : order.steps) {
      const StepShare share = spans.Received(step);
      uint64_t end = 0;
      for (const SlabSpan& span : share.spans) {
        ASSERT_GT(span.bytes, 0u);
        ASSERT_TRUE(span.offset > end || end == 0);
        end = span.offset + span.bytes;
        ASSERT_LE(end, plan.slab_bytes);
        for (uint64_t at = span.offset; at < end; ++at) {
          if (tensors[at] == 1) {
            ASSERT_EQ(left[at]--, 1) << "byte " << at << " comes twice";
          }
        }
      }
      bytes += share.tensor_bytes;
    }
    EXPECT_EQ(bytes, plan.tensor_bytes);
    EXPECT_EQ(std::count(left.begin(), left.end(), 1), 0);
  }
}

TEST_P(SlabSpansOf, AreTheSameInTheWholePlanAndInThatOfTheStepsWindow) {
  const ScatterOrder order = OrderScatter(*index_, {200, 5});
  const auto windows = group_->WindowsAt(order.windows);
  for (const RankPlan& plan : plans_) {
    ASSERT_OK_AND_ASSIGN(const SlabSpans whole, SlabSpans::Make(plan));
    for (const ScatterStep& step : order.steps) {
      const GroupPlan::Open open = group_->OpenWindow(windows[step.window]);
      ASSERT_OK_AND_ASSIGN(const RankPlan part, open.PlanOf(*group_->Find(plan.rank)));
      ASSERT_OK_AND_ASSIGN(const SlabSpans spans, SlabSpans::Make(part));
      EXPECT_EQ(spans.Received(step).spans, whole.Received(step).spans);
      EXPECT_EQ(spans.Received(step).tensor_bytes, whole.Received(step).tensor_bytes);
    }
  }
}

std::vector<SpanCase> Cases() {
  std::vector<SpanCase> cases;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    for (size_t layout = 0; layout < SixRankLayouts().size(); ++layout) {
      cases.push_back({seed, layout});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Random, SlabSpansOf, testing::ValuesIn(Cases()));

RankPlan TwoTensors(uint64_t gap) {
  RankPlan plan;
  plan.slab_bytes = 1 << 20;
  for (uint64_t i = 0; i < 2; ++i) {
    PlannedTensor tensor;
    tensor.name = std::string(1, static_cast<char>('a' + i));
    tensor.offset = i * (1000 + gap);
    tensor.bytes = 1000;
    tensor.padded_bytes = 1000 + gap;
    plan.tensors.push_back(tensor);
    CopyOp op;
    op.tensor = static_cast<uint32_t>(i);
    op.from = op.to = Dtype::kU8;
    op.file_offset = 1000 * i;
    op.slab_offset = tensor.offset;
    op.run_bytes = 1000;
    plan.ops.push_back(op);
  }
  return plan;
}

TEST(SlabSpans, ShortPaddingBetweenWholeTensorsIsSentAlong) {
  const RankPlan near = TwoTensors(SlabSpans::kJoinGap);
  const RankPlan far = TwoTensors(SlabSpans::kJoinGap + 1);
  EXPECT_EQ(SlabSpans::Make(near)->Received({0, 0, 0, 2000}).spans.size(), 1u);
  EXPECT_EQ(SlabSpans::Make(far)->Received({0, 0, 0, 2000}).spans.size(), 2u);
}

// A window without the middle tensor sees only the two others.
RankPlan ThreeTensors(uint64_t middle, uint64_t last) {
  RankPlan plan = TwoTensors(0);
  plan.tensors[1].offset = plan.ops[1].slab_offset = last;
  PlannedTensor& added = plan.tensors.emplace_back(plan.tensors[0]);
  added.name = "c";
  added.offset = middle;
  added.bytes = added.padded_bytes = 16;
  CopyOp& op = plan.ops.emplace_back(plan.ops[0]);
  op.file = 1;
  op.tensor = 2;
  op.slab_offset = middle;
  op.run_bytes = 16;
  return plan;
}

void ExpectTheSameWithoutTheMiddleOne(RankPlan plan) {
  const auto whole = SlabSpans::Make(plan)->Received({0, 0, 0, 2000}).spans;
  EXPECT_EQ(whole.size(), 2u);
  plan.tensors.pop_back();
  plan.ops.pop_back();
  EXPECT_EQ(SlabSpans::Make(plan)->Received({0, 0, 0, 2000}).spans, whole);
}

TEST(SlabSpans, ATensorThatOnlyTheWholePlanShowsIsNoPadding) {
  ExpectTheSameWithoutTheMiddleOne(ThreeTensors(1024, 1536));
}

TEST(SlabSpans, AMemberOfAFlatParameterThatOnlyTheWholePlanShowsIsNoPadding) {
  RankPlan plan = ThreeTensors(1004, 1024);
  plan.flats.push_back({"flat", Dtype::kU8, 0, 2024});
  ExpectTheSameWithoutTheMiddleOne(plan);
}

TEST(SlabSpans, BytesOfAnotherStepAreNeverSentAlong) {
  const RankPlan plan = TwoTensors(24);
  ASSERT_OK_AND_ASSIGN(const SlabSpans spans, SlabSpans::Make(plan));
  // The end of the first tensor is not in this step; an earlier step brought it.
  EXPECT_EQ(spans.Received({0, 0, 500, 1990}).spans,
            (std::vector<SlabSpan>{{500, 524 + 990}}));
  EXPECT_EQ(spans.Received({0, 0, 100, 900}).spans, (std::vector<SlabSpan>{{100, 800}}));
}

}  // namespace
}  // namespace ckptd
