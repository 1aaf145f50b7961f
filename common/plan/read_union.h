// How much storage must deliver for some copies: what several of them read counts
// once.
#ifndef CKPTD_COMMON_PLAN_READ_UNION_H_
#define CKPTD_COMMON_PLAN_READ_UNION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/plan/plan.h"

namespace ckptd {

// Distinct bytes per file, of `files` files; exact as ReadBytesPerFile is.
std::vector<uint64_t> ReadUnion(std::span<const CopyOp* const> ops, size_t files);

}  // namespace ckptd

#endif  // CKPTD_COMMON_PLAN_READ_UNION_H_
