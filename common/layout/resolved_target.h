// The first half of planning: the source tensor and dtype of each target, and which names share
// memory. Pure; thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_RESOLVED_TARGET_H_
#define CKPTD_COMMON_LAYOUT_RESOLVED_TARGET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/layout/layout.h"

namespace ckptd {

// One tensor that a shard will hold. Points into the index and the layout.
struct ResolvedTarget {
  const TensorEntry* source = nullptr;
  const Sharding* sharding = nullptr;  // that of its flat parameter, if it is a member
  std::optional<FlatPlace> flat;
  Dtype dtype = Dtype::kUnspecified;  // in the slab; never kUnspecified
  std::string name;  // the source tensor's own name if it was requested, otherwise the first
  std::vector<std::string> aliases;   // all other requested names, sorted
};

// Finds the source tensor of every target. A target's own name comes first; an alias is used if
// the source has only that. The result is sorted by name. Leaves out what the layout allows to be
// missing. `layout` must pass CheckRankLayout. Errors: NotFound TENSOR_NOT_FOUND naming the first
// few and their number, LAYOUT_MISMATCH for impossible shapes and casts, LAYOUT_INVALID for a
// policy that casts to a type without casts.
absl::StatusOr<std::vector<ResolvedTarget>> ResolveTargets(const CheckpointIndex& index,
                                                           const RankLayout& layout,
                                                           const DtypePolicy& policy);

// The error for names that a source lacks. `missing` must not be empty.
absl::Status MissingTensors(const CheckpointIndex& index, const std::vector<std::string>& missing,
                            uint32_t rank);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_RESOLVED_TARGET_H_
