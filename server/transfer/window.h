// A transfer is scheduled in windows, because all copies of a thousand ranks at once would not
// fit into memory. Windows are in file order and share no byte.
#ifndef CKPTD_SERVER_TRANSFER_WINDOW_H_
#define CKPTD_SERVER_TRANSFER_WINDOW_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/group_plan.h"
#include "common/plan/scatter_order.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/step_user.h"
#include "server/transfer/transfer_types.h"
#include "server/transfer/transfer_parts.h"

namespace ckptd {

// The part of the targets' plans that lies in one window, and its schedule. Neither copied nor
// moved once filled.
struct TransferWindow {
  std::vector<RankPlan> plans;          // empty if `targets` have plans of their own
  std::vector<TransferTarget> targets;  // with their plans for this window
  // Per target and tensor of the window, the tensor's number in the target's whole plan. Null
  // where both numbers are the same.
  std::vector<const std::vector<uint32_t>*> numbers;
  std::shared_ptr<const GroupPlan::Open> open;  // owns `numbers`
  TransferParts parts;
  // of the targets whose memory is here; null if digests are off
  std::unique_ptr<DigestBoard> board;
  std::atomic<size_t> items_left = 0;          // items that are not done
  size_t number = 0;                           // number of the window in its WindowSource
  std::atomic<size_t> items_not_in_place = 0;  // items that may not be in place yet
};

// Everything that a transfer has to do. The objects it was made from must outlive it.
struct WindowSource {
  // The size of a target's whole plan.
  struct TargetTotals {
    uint32_t rank = 0;
    uint64_t tensor_bytes = 0;
    size_t tensors = 0;
    std::vector<size_t> counters;  // indexes into TransferProgress::done
  };
  const CheckpointIndex* index = nullptr;
  std::vector<TargetTotals> targets;
  size_t counters = 0;                 // TransferProgress::done must have at least this many
  std::vector<uint64_t> window_bytes;  // bytes of the files; never empty
  // Per window, the step that limits its bytes. Empty: no limits.
  std::vector<ScatterStep> steps;
  StepUser* user = nullptr;  // set if there are steps
  bool complete = true;      // the windows cover all bytes of the targets
  // Fills plans, targets and numbers of a window. Thread-safe.
  std::function<absl::Status(size_t window, TransferWindow& out)> plan;
};

// One window with the targets' own plans.
WindowSource WholePlans(const CheckpointIndex& index, std::span<const TransferTarget> targets);
// Windows of about `copies` copies. Target i is `ranks[i]` of the group.
WindowSource PlansOfGroup(const GroupPlan& group, std::span<const PlannedRank* const> ranks,
                          std::span<const TransferTarget> targets, uint64_t copies);

// One window per step. Each target is listed once per view. The view that the step fills has the
// target's plan, the others have an empty one.
WindowSource StepsOfGroup(const GroupPlan& group, const StepList& steps,
                          std::span<const StepTarget> targets, StepUser& user);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_WINDOW_H_
