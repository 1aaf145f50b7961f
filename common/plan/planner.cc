#include <memory>

#include "common/base/status.h"
#include "common/plan/cohort_plan.h"
#include "common/plan/plan.h"

namespace ckptd {

absl::StatusOr<RankPlan> PlanRank(const CheckpointIndex& index, const RankLayout& layout,
                                  const DtypePolicy& policy) {
  // A cohort of one; it ends before `layout` does.
  CKPTD_ASSIGN_OR_RETURN(
      const CohortPlan cohort,
      CohortPlan::Make(index, std::shared_ptr<const RankLayout>(std::shared_ptr<void>(), &layout),
                       policy));
  CKPTD_ASSIGN_OR_RETURN(const PlannedRank rank, cohort.Plan(layout.rank, nullptr));
  return cohort.Slice(rank, cohort.RangeOf(0, cohort.items().size()));
}

}  // namespace ckptd
