// Digest of one rank's plan.
#ifndef CKPTD_COMMON_LAYOUT_PLAN_DIGEST_H_
#define CKPTD_COMMON_LAYOUT_PLAN_DIGEST_H_

#include <cstdint>

#include "common/layout/plan.h"

namespace ckptd {

// XXH3-64 over everything in the plan but `digest` itself, in a canonical
// little-endian spelling. Equal plans have equal digests on every machine.
uint64_t DigestOf(const RankPlan& plan);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_PLAN_DIGEST_H_
