// What a transfer will do, and in which order: the copies of all targets, grouped into work items
// in file order. Pure. A schedule is built once, and then all threads read it.
#ifndef CKPTD_SERVER_TRANSFER_SCHEDULE_H_
#define CKPTD_SERVER_TRANSFER_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/transfer/geometry.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// The tensor of the target to which a copy goes.
struct Destination {
  uint32_t target = 0;  // index into the transfer's targets
  uint32_t tensor = 0;  // index into that target's RankPlan::tensors
};

// One copy, with every target that wants exactly these bytes. The targets share the read, the
// cast and the digest.
struct SharedCopy {
  const CopyOp* op = nullptr;  // that of the first destination
  uint64_t tensor_offset = 0;  // of the first destination's tensor, in its slab
  uint64_t begin = 0;          // source bytes [begin, end)
  uint64_t end = 0;
  uint32_t first_destination = 0;
  uint32_t destinations = 0;
};

// A range of one file, and the copies that may need bytes of it. Items are disjoint and ascend.
// None cuts an element that is cast.
struct WorkItem {
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t first_copy = 0;
  uint32_t last_copy = 0;  // one past
};

struct Schedule {
  std::vector<Destination> destinations;
  std::vector<SharedCopy> copies;  // by (file, begin)
  // Per copy, the largest `end` of the copies of the same file up to it.
  std::vector<uint64_t> reach;
  std::vector<WorkItem> items;
};

// The item [begin, end) of `file`, with those copies of `schedule` that may need bytes of it.
// There may be none.
WorkItem ItemIn(const Schedule& schedule, uint32_t file, uint64_t begin, uint64_t end);

// Sizes of items, in source bytes. Longer items would let threads finish at different times;
// shorter ones would cost time to hand out.
inline constexpr uint64_t kItemBytes = uint64_t{1} << 20;
// Shorter gaps of unneeded bytes are read as well: a system call costs as much, and storage
// delivers whole pages anyway.
inline constexpr uint64_t kReadThroughGap = 4096;

// Checks every copy against the files, tensors and slabs that it names. The slab of a target with
// a sink is not checked, because its memory is not here. The targets must outlive the schedule.
// Errors: Internal COVERAGE for a plan that does not fit, DataLoss SOURCE_INVALID for a copy past
// the end of a file.
absl::StatusOr<Schedule> BuildSchedule(const CheckpointIndex& index,
                                       std::span<const TransferTarget> targets);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SCHEDULE_H_
