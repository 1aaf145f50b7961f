#include "server/transfer/window.h"

#include <utility>

#include "common/base/status.h"

namespace ckptd {

WindowSource WholePlans(const CheckpointIndex& index, std::span<const TransferTarget> targets) {
  WindowSource source;
  source.index = &index;
  for (const TransferTarget& target : targets) {
    const RankPlan& plan = *target.plan;
    source.targets.push_back({plan.rank, plan.tensor_bytes, plan.tensors.size()});
  }
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
    source.targets.push_back({rank->rank, rank->tensor_bytes, rank->tensors});
  }
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

}  // namespace ckptd
