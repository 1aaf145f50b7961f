// A rank's plan has a bound, so that a layout that scatters its tensors is refused
// before the plan takes the daemon's memory.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/reasons.h"
#include "tests/testing/fake_source.h"
#include "tests/testing/status_matchers.h"

namespace ckptd {
namespace {

constexpr uint64_t kTensors = 2000;
constexpr uint64_t kBoxes = 2000;  // of every tensor; together 4 million copies

// Tensors of one byte per box; each box is a copy.
class PlanLimit : public ::testing::Test {
 protected:
  PlanLimit() {
    Sharding scattered;
    for (uint64_t i = 0; i < kBoxes; ++i) scattered.boxes.push_back({{i}, {1}});
    layout_.shardings = {scattered, Sharding()};
    for (uint64_t i = 0; i < kTensors; ++i) Add(fmt::format("t{:04}", i), 0);
  }
  void Add(const std::string& name, uint32_t sharding) {
    source_.Add(name, {kBoxes}, Dtype::kU8);
    TargetSpec& target = layout_.targets.emplace_back();
    target.name = name;
    target.sharding = sharding;
  }

  FakeSource source_;
  RankLayout layout_;
};

TEST_F(PlanLimit, AsManyCopiesAsMayBeArePlanned) {
  const RankPlan plan = Plan(source_, layout_);
  EXPECT_EQ(plan.ops.size(), kTensors * kBoxes);
  EXPECT_EQ(plan.tensor_bytes, kTensors * kBoxes);
}

TEST_F(PlanLimit, OneCopyMoreIsRefusedWithItsTensor) {
  Add("whole", 1);
  const auto plan = PlanRank(source_.index(), layout_, {});
  EXPECT_THAT(plan, FailsWith(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch));
  EXPECT_THAT(plan, Says("more than 4000000 copies; use fewer boxes"));
  EXPECT_THAT(plan, Says("'whole'"));
}

}  // namespace
}  // namespace ckptd
