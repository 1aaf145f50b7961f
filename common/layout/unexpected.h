// What a source holds beyond what ranks state. Pure; thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_UNEXPECTED_H_
#define CKPTD_COMMON_LAYOUT_UNEXPECTED_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/layout/layout.h"
#include "common/source/index.h"

namespace ckptd {

// Tensors of the source that none of the layouts names, as a target or an alias;
// aliases of the source count as the tensor they are. Sorted.
std::vector<std::string> UnexpectedTensors(const CheckpointIndex& index,
                                           std::span<const RankLayout* const> layouts);

// What the layouts of a whole group say together. InvalidArgument
// UNEXPECTED_TENSORS naming the first few and their number, when one of the
// layouts refuses them.
absl::Status CheckNothingUnexpected(const CheckpointIndex& index,
                                    std::span<const RankLayout* const> layouts);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_UNEXPECTED_H_
