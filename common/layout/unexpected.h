// Finds tensors of a source that no rank has requested. Pure; thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_UNEXPECTED_H_
#define CKPTD_COMMON_LAYOUT_UNEXPECTED_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/index.h"
#include "common/layout/layout.h"

namespace ckptd {

// Tensors of the source that no layout names, as a target or an alias. An alias in the source
// counts as its tensor. Sorted.
std::vector<std::string> UnexpectedTensors(const CheckpointIndex& index,
                                           std::span<const RankLayout* const> layouts);

// Checks the layouts of a whole group together. InvalidArgument UNEXPECTED_TENSORS naming the
// first few and their number, if one of the layouts refuses them.
absl::Status CheckNothingUnexpected(const CheckpointIndex& index,
                                    std::span<const RankLayout* const> layouts);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_UNEXPECTED_H_
