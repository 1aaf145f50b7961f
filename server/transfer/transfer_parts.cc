#include "server/transfer/transfer_parts.h"

#include <algorithm>

#include "common/base/status.h"

namespace ckptd {
namespace {

// Steps cut no element, so items may be cut where steps are.
std::vector<WorkItem> ItemsIn(const Schedule& schedule, const ScatterStep& step) {
  std::vector<WorkItem> items;
  for (const WorkItem& item : schedule.items) {
    const uint64_t begin = std::max(item.begin, step.begin);
    const uint64_t end = std::min(item.end, step.end);
    if (item.file == step.file && begin < end) {
      items.push_back(ItemIn(schedule, item.file, begin, end));
    }
  }
  return items;
}

}  // namespace

absl::Status BuildParts(const CheckpointIndex& index, std::span<const TransferTarget> targets,
                        const ItemShare& share, const ScatterStep* step, TransferParts& parts) {
  parts.targets = targets;
  CKPTD_ASSIGN_OR_RETURN(parts.schedule, BuildSchedule(index, targets));
  parts.items = parts.schedule.items;
  if (step != nullptr) {
    parts.in_step = ItemsIn(parts.schedule, *step);
    parts.items = parts.in_step;
  }
  // Each reader gets consecutive items, so that it reads sequentially.
  const absl::uint128 count = parts.items.size();
  const auto first = static_cast<size_t>(count * share.begin / share.of);
  const auto last = static_cast<size_t>(count * share.end / share.of);
  parts.items = parts.items.subspan(first, last - first);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].sink == nullptr) {
      parts.here.push_back(targets[i]);
      parts.here_at.push_back(i);
      continue;
    }
    RemoteTarget remote;
    remote.target = i;
    remote.self = targets.subspan(i, 1);
    CKPTD_ASSIGN_OR_RETURN(remote.schedule, BuildSchedule(index, remote.self));
    parts.remotes.push_back(std::move(remote));
  }
  if (parts.remotes.empty()) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(parts.here_schedule, BuildSchedule(index, parts.here));
  return absl::OkStatus();
}

}  // namespace ckptd
