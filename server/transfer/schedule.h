// What a transfer will do, in which order: the copies of all targets, grouped
// into work items in file order. Pure; built once, then read by all threads.
#ifndef CKPTD_SERVER_TRANSFER_SCHEDULE_H_
#define CKPTD_SERVER_TRANSFER_SCHEDULE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "server/transfer/geometry.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Where a copy lands.
struct Destination {
  uint32_t target = 0;  // index into the transfer's targets
  uint32_t tensor = 0;  // index into that target's RankPlan::tensors
};

// One copy, with every target that wants exactly it: they share the read, the
// cast and the digest.
struct SharedCopy {
  const CopyOp* op = nullptr;  // of the first destination
  uint64_t tensor_offset = 0;  // of the first destination's tensor, in its slab
  uint64_t begin = 0;          // source bytes [begin, end)
  uint64_t end = 0;
  uint32_t first_destination = 0;
  uint32_t destinations = 0;
};

// A range of one file, and the copies that may need bytes of it. Items are
// disjoint, ascend, and cut no element that is cast.
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
  // Per copy, the furthest end among the copies of its file up to it.
  std::vector<uint64_t> reach;
  std::vector<WorkItem> items;
};

// The item [begin, end) of `file`, with the copies of `schedule` that may need
// bytes of it; none of them when it needs nothing there.
WorkItem ItemIn(const Schedule& schedule, uint32_t file, uint64_t begin, uint64_t end);

// Sizes of items, in source bytes: long enough that handing them out costs
// nothing, short enough that threads finish together.
inline constexpr uint64_t kItemBytes = uint64_t{1} << 20;
// Bytes that nobody needs are read along when there are fewer than these: a
// system call costs as much, and storage delivers whole pages anyway.
inline constexpr uint64_t kReadThroughGap = 4096;

// Checks every copy against the files, tensors and slabs it names. Errors:
// Internal COVERAGE for a plan that does not fit, DataLoss SOURCE_INVALID for a
// copy past the end of a file. The targets must outlive the schedule. Of a target
// with a sink, whose memory is elsewhere, the slab is not looked at.
absl::StatusOr<Schedule> BuildSchedule(const CheckpointIndex& index,
                                       std::span<const TransferTarget> targets);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SCHEDULE_H_
