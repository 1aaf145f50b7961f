// Tensors that several ranks hold whole: where a communicator carries bytes, it brings the
// same to all of them at once. Pure.
#ifndef CKPTD_COMMON_PLAN_WHOLE_TENSORS_H_
#define CKPTD_COMMON_PLAN_WHOLE_TENSORS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/cohort_plan.h"
#include "common/plan/plan.h"
#include "common/source/index.h"

namespace ckptd {

// Numbers in the index, ascending, of the tensors that all these cohorts' ranks hold whole, in
// the same dtype. Left out are those of less than `least_bytes` in that dtype, those that a
// rank holds twice, those of short runs, and those that lie among bytes of others.
std::vector<uint32_t> FindWholeTensors(const CheckpointIndex& index,
                                       std::span<const CohortPlan* const> cohorts,
                                       uint64_t least_bytes);

// Such tensors, by their bytes in the files. Thread-safe.
class WholeTensors {
 public:
  WholeTensors() = default;  // none
  // `numbers` as FindWholeTensors gives them. Errors: InvalidArgument INVALID_REQUEST for one
  // that the index lacks.
  static absl::StatusOr<WholeTensors> Of(const CheckpointIndex& index,
                                         std::span<const uint32_t> numbers);

  bool empty() const { return ranges_.empty(); }
  // Whether the copy reads bytes of one of them. O(log n).
  bool Has(const CopyOp& op) const;

 private:
  struct Range {
    FilePlace begin;
    uint64_t end = 0;
  };
  std::vector<Range> ranges_;  // ascending, apart from each other
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_WHOLE_TENSORS_H_
