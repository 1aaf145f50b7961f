// What the threads of one transfer share and never change: the work in file
// order, and who of the targets is filled here and who is sent to.
#ifndef CKPTD_SERVER_TRANSFER_TRANSFER_PARTS_H_
#define CKPTD_SERVER_TRANSFER_TRANSFER_PARTS_H_

#include <span>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/statusor.h"
#include "common/plan/scatter_order.h"
#include "server/transfer/frame_sender.h"
#include "server/transfer/schedule.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Keeps pointers into itself: neither copied nor moved once built.
struct TransferParts {
  std::span<const TransferTarget> targets;
  Schedule schedule;            // of all targets
  std::vector<WorkItem> in_step;    // made only when a step limits them
  std::span<const WorkItem> items;  // those that this process does
  // Targets whose memory is here: `here[i]` is targets[here_at[i]].
  std::vector<TransferTarget> here;
  std::vector<size_t> here_at;
  Schedule here_schedule;  // made only when some target is elsewhere
  std::vector<RemoteTarget> remotes;

  const Schedule& ScheduleHere() const { return remotes.empty() ? schedule : here_schedule; }
};

// Of the items in file order, those from begin / of to end / of of them. Whole numbers:
// readers on other machines must come to the same items.
struct ItemShare {
  absl::uint128 begin = 0;
  absl::uint128 end = 1;  // at most `of`, which is below 2^96
  absl::uint128 of = 1;
};

// `step`: only what lies in it; null: everything. Errors: those of BuildSchedule.
absl::Status BuildParts(const CheckpointIndex& index, std::span<const TransferTarget> targets,
                        const ItemShare& share, const ScatterStep* step, TransferParts& parts);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_PARTS_H_
