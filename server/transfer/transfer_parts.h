// What the threads of one transfer share and never change: the work in file order, and which
// targets are filled here and which are sent to.
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

// Has pointers into itself, so it is neither copied nor moved once built.
struct TransferParts {
  std::span<const TransferTarget> targets;
  Schedule schedule;                // for all targets
  std::vector<WorkItem> in_step;    // made only if a step limits the items
  std::span<const WorkItem> items;  // the items that this process does
  // Targets whose memory is here: `here[i]` is targets[here_at[i]].
  std::vector<TransferTarget> here;
  std::vector<size_t> here_at;
  Schedule here_schedule;  // made only if some target has a sink
  std::vector<RemoteTarget> remotes;

  const Schedule& ScheduleHere() const { return remotes.empty() ? schedule : here_schedule; }
};

// A share of the items in file order: from begin / of to end / of. Whole numbers, because readers
// on other machines must come to the same items.
struct ItemShare {
  absl::uint128 begin = 0;
  absl::uint128 end = 1;  // at most `of`, which is below 2^96
  absl::uint128 of = 1;
};

// `step` limits the work to the bytes in it. Null: everything. Errors: those of BuildSchedule.
absl::Status BuildParts(const CheckpointIndex& index, std::span<const TransferTarget> targets,
                        const ItemShare& share, const ScatterStep* step, TransferParts& parts);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_PARTS_H_
