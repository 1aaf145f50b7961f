// Planning without loading: what a load would read, and what each rank would get.
#ifndef CKPTD_SERVER_CORE_DRY_RUN_H_
#define CKPTD_SERVER_CORE_DRY_RUN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "server/core/domain.h"

namespace ckptd {

// All plans are kept until the bytes that they share are counted: about a gigabyte.
inline constexpr size_t kMaxDryRunCopies = 4'000'000;

struct DryRun {
  CheckpointIndex index;
  std::vector<RankPlan> plans;
};

// Rule form: all ranks. Rank form: rank `own` alone. Opens the source. Errors: those
// of OpenCheckpoint, LayoutOfRank and PlanRank; DeadlineExceeded DEADLINE, and
// InvalidArgument INVALID_REQUEST for so many ranks and tensors that their plans
// would not fit beside the shards.
absl::StatusOr<DryRun> PlanDry(const LoadRequest& request, uint32_t own, Deadline deadline,
                               size_t max_copies = kMaxDryRunCopies);

}  // namespace ckptd

#endif  // CKPTD_SERVER_CORE_DRY_RUN_H_
