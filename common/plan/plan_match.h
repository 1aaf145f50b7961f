// Whether what one plan puts into a slab is all there in the slab of another: the same bytes, from
// the same places of the files, however the two layouts were spelled. Pure; thread-safe.
#ifndef CKPTD_COMMON_PLAN_PLAN_MATCH_H_
#define CKPTD_COMMON_PLAN_PLAN_MATCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/plan/plan.h"

namespace ckptd {

struct PlanMatch {
  // Per tensor of the wanted plan, the number of the resident one that has its bytes; each is
  // there once. Unspecified where something differs.
  std::vector<uint32_t> resident;
  // The first difference, for people; empty: all that is wanted is there.
  std::string differs;
};

// Both plans are of the same files, and of the same rank. The resident one may have more tensors
// and longer padding. A tensor is looked up by its names: which of them is an alias makes no
// difference, nor does its shape as long as its bytes are the same. Flat parameters match in
// equal plans alone, as their members are not aligned.
PlanMatch MatchPlans(const RankPlan& resident, const RankPlan& wanted);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_PLAN_MATCH_H_
