#include "server/transfer/window.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"

namespace ckptd {

WindowSource WholePlans(const CheckpointIndex& index, std::span<const TransferTarget> targets) {
  WindowSource source;
  source.index = &index;
  for (const TransferTarget& target : targets) {
    const RankPlan& plan = *target.plan;
    source.targets.push_back(
        {plan.rank, plan.tensor_bytes, plan.tensors.size(), {source.targets.size()}});
  }
  source.counters = targets.size();
  source.window_bytes = {1};
  source.plan = [targets](size_t, TransferWindow& out) {
    out.targets.assign(targets.begin(), targets.end());
    out.numbers.assign(targets.size(), nullptr);
    return absl::OkStatus();
  };
  return source;
}

WindowSource PlansOfGroup(const GroupPlan& group, std::span<const PlannedRank* const> ranks,
                          std::span<const TransferTarget> targets, uint64_t copies) {
  WindowSource source;
  source.index = &group.index();
  for (const PlannedRank* rank : ranks) {
    source.targets.push_back(
        {rank->rank, rank->tensor_bytes, rank->tensors, {source.targets.size()}});
  }
  source.counters = targets.size();
  auto windows = group.Windows(ranks, copies);
  for (const PlanWindow& window : windows) source.window_bytes.push_back(window.bytes);
  source.plan = [&group, ranks, targets, windows = std::move(windows)](
                    size_t window, TransferWindow& out) -> absl::Status {
    out.open = std::make_shared<const GroupPlan::Open>(group.OpenWindow(windows[window]));
    out.plans.reserve(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      CKPTD_ASSIGN_OR_RETURN(RankPlan plan, out.open->PlanOf(*ranks[i]));
      out.plans.push_back(std::move(plan));
      out.numbers.push_back(&out.open->NumbersOf(*ranks[i]));
      out.targets.push_back({&out.plans.back(), targets[i].slab, targets[i].sink});
    }
    return absl::OkStatus();
  };
  return source;
}

namespace {

// Opens windows of a group one after the other. Steps of a large tensor share one window.
class WindowOpener {
 public:
  WindowOpener(const GroupPlan& group, std::span<const FilePlace> begins)
      : group_(group), windows_(group.WindowsAt(begins)) {}

  std::shared_ptr<const GroupPlan::Open> Open(size_t window) {
    if (open_ == nullptr || window != number_) {
      open_ = std::make_shared<const GroupPlan::Open>(group_.OpenWindow(windows_[window]));
      number_ = window;
    }
    return open_;
  }

 private:
  const GroupPlan& group_;
  const std::vector<PlanWindow> windows_;
  size_t number_ = 0;
  std::shared_ptr<const GroupPlan::Open> open_;
};

// Adds the plan of each target in the open window, and the view that the step fills.
absl::Status PlanStep(size_t number, std::span<const StepTarget> targets, TransferWindow& out,
                      std::vector<const RankPlan*>& plans) {
  out.plans.reserve(targets.size() + 1);
  const RankPlan& nothing = out.plans.emplace_back();
  for (const StepTarget& target : targets) {
    CKPTD_ASSIGN_OR_RETURN(RankPlan plan, out.open->PlanOf(*target.rank));
    if (target.only) {
      std::erase_if(plan.ops, [&target](const CopyOp& op) { return !target.only(op); });
    }
    plans.push_back(&out.plans.emplace_back(std::move(plan)));
    for (size_t view = 0; view < target.views.size(); ++view) {
      const bool filled = view == number % target.views.size();
      out.targets.push_back({filled ? plans.back() : &nothing, target.views[view], nullptr});
      out.numbers.push_back(nullptr);
    }
  }
  return absl::OkStatus();
}

}  // namespace

WindowSource StepsOfGroup(const GroupPlan& group, const StepList& steps,
                          std::span<const StepTarget> targets, StepUser& user) {
  WindowSource source;
  source.index = &group.index();
  source.user = &user;
  source.complete = steps.steps.size() == steps.order->steps.size();
  for (const StepTarget& target : targets) {
    const PlannedRank& rank = *target.rank;
    const WindowSource::TargetTotals whole = {rank.rank, rank.tensor_bytes, rank.tensors,
                                              target.counters};
    source.targets.insert(source.targets.end(), target.views.size(), whole);
    for (const size_t counter : target.counters) {
      source.counters = std::max(source.counters, counter + 1);
    }
  }
  for (const size_t step : steps.steps) {
    source.steps.push_back(steps.order->steps[step]);
    source.window_bytes.push_back(1);
  }
  // Windows are made one at a time, in order.
  const auto opener = std::make_shared<WindowOpener>(group, steps.order->windows);
  source.plan = [opener, targets, &user, ranges = source.steps](
                    size_t number, TransferWindow& out) -> absl::Status {
    out.open = opener->Open(ranges[number].window);
    std::vector<const RankPlan*> plans;
    CKPTD_RETURN_IF_ERROR(PlanStep(number, targets, out, plans));
    return user.Plan(number, plans);
  };
  return source;
}

}  // namespace ckptd
