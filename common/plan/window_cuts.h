// Cuts what some ranks want into windows of bounded work. Pure.
#ifndef CKPTD_COMMON_PLAN_WINDOW_CUTS_H_
#define CKPTD_COMMON_PLAN_WINDOW_CUTS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/plan/cohort_plan.h"
#include "common/plan/file_order.h"
#include "common/source/index.h"

namespace ckptd {

// A run of places in file order.
struct CutWindow {
  std::vector<ItemSpan> items;  // per cohort
  uint64_t bytes = 0;           // of their tensors in the files
};

// All items of the cohorts, of each of which `members` are planned. A window ends at the
// first allowed cut after its ranks have `copies` copies. At least one window.
std::vector<CutWindow> CutWindows(const CheckpointIndex& index,
                                  std::span<const CohortPlan* const> cohorts,
                                  const std::vector<std::vector<const PlannedRank*>>& members,
                                  uint64_t copies);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_WINDOW_CUTS_H_
