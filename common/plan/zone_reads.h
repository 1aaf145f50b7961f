// What storage must deliver to a whole group, without going through the copies of
// each rank and tensor. Pure.
#ifndef CKPTD_COMMON_PLAN_ZONE_READS_H_
#define CKPTD_COMMON_PLAN_ZONE_READS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/plan/cohort_plan.h"
#include "common/source/index.h"

namespace ckptd {

// As ReadBytesPerFile for the ranks `members[c]` that each cohort c has planned.
// Counted from above also where very many copies of different tensors overlap.
std::vector<uint64_t> ReadBytesOf(const CheckpointIndex& index,
                                  std::span<const CohortPlan* const> cohorts,
                                  const std::vector<std::vector<const PlannedRank*>>& members);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_ZONE_READS_H_
