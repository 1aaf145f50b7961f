// A transfer is scheduled in windows: for a thousand ranks, all their copies at once
// would not fit beside the shards. Windows are in file order and share no byte.
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

// What of the targets' plans lies in one window, and its schedule. Neither copied nor
// moved once filled.
struct TransferWindow {
  std::vector<RankPlan> plans;           // empty where `targets` have plans of their own
  std::vector<TransferTarget> targets;   // with their plans of this window
  // Per target and tensor of the window, its number in the target's whole plan; null
  // where they are the same.
  std::vector<const std::vector<uint32_t>*> numbers;
  std::shared_ptr<const GroupPlan::Open> open;  // owns `numbers`
  TransferParts parts;
  std::unique_ptr<DigestBoard> board;  // of the targets here; null when digests are off
  std::atomic<size_t> items_left = 0;  // to be done
  size_t number = 0;                   // in the source
  std::atomic<size_t> items_away = 0;  // not known to be in place
};

// Everything that a transfer has to do. What it was made from outlives it.
struct WindowSource {
  // A target's whole plan in numbers.
  struct Whole {
    uint32_t rank = 0;
    uint64_t tensor_bytes = 0;
    size_t tensors = 0;
    std::vector<size_t> counters;  // where its bytes are counted
  };
  const CheckpointIndex* index = nullptr;
  std::vector<Whole> targets;
  size_t counters = 0;                 // TransferProgress::done has at least so many
  std::vector<uint64_t> window_bytes;  // of the files; never empty, but for steps
  // Per window, which part of its tensors' bytes belongs to it; empty: all.
  std::vector<ScatterStep> steps;
  StepUser* user = nullptr;  // of the steps
  bool complete = true;      // the windows have all bytes of the targets
  // Fills plans, targets and numbers of a window. Thread-safe.
  std::function<absl::Status(size_t window, TransferWindow& out)> plan;
};

// One window: the targets' own plans.
WindowSource WholePlans(const CheckpointIndex& index, std::span<const TransferTarget> targets);
// Windows of about `copies` copies: target i is `ranks[i]` of the group.
WindowSource PlansOfGroup(const GroupPlan& group, std::span<const PlannedRank* const> ranks,
                          std::span<const TransferTarget> targets, uint64_t copies);

// A window per step. Each target is there once per view, with its plan where the step fills
// that view and an empty one elsewhere.
WindowSource StepsOfGroup(const GroupPlan& group, const StepList& steps,
                          std::span<const StepTarget> targets, StepUser& user);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_WINDOW_H_
