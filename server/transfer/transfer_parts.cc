#include "server/transfer/transfer_parts.h"

#include "common/base/status.h"

namespace ckptd {

absl::Status BuildParts(const CheckpointIndex& index, std::span<const TransferTarget> targets,
                        const ItemShare& share, TransferParts& parts) {
  parts.targets = targets;
  CKPTD_ASSIGN_OR_RETURN(parts.schedule, BuildSchedule(index, targets));
  // Neighbours in the files stay together, so that each reader reads sequentially.
  const absl::uint128 count = parts.schedule.items.size();
  const auto first = static_cast<size_t>(count * share.begin / share.of);
  const auto last = static_cast<size_t>(count * share.end / share.of);
  parts.items = std::span(parts.schedule.items).subspan(first, last - first);
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
