// First half of planning: which source tensor, which dtype, and which of the
// asked names share memory. Pure; thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_RESOLVED_TARGET_H_
#define CKPTD_COMMON_LAYOUT_RESOLVED_TARGET_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/source/index.h"

namespace ckptd {

// One tensor that a shard will hold. Views into the index and the layout.
struct ResolvedTarget {
  const TensorEntry* source = nullptr;
  const Sharding* sharding = nullptr;  // of its flat parameter, if it is a member of one
  std::optional<FlatPlace> flat;
  Dtype dtype = Dtype::kUnspecified;  // in the slab, never kUnspecified
  std::string name;                   // the source tensor's own when asked for, else the first
  std::vector<std::string> aliases;   // sorted; all other names asked for it
};

// Looks every target up. A target's own name decides which source tensor it
// gets; an alias is used when the source has only that. Sorted by name. Leaves
// out what the layout allows to be missing.
// `layout` must pass CheckRankLayout. Errors: NotFound TENSOR_NOT_FOUND naming
// the first few and their number, LAYOUT_MISMATCH for shapes and casts that
// cannot be, LAYOUT_INVALID for a policy that casts to a type without casts.
absl::StatusOr<std::vector<ResolvedTarget>> ResolveTargets(const CheckpointIndex& index,
                                               const RankLayout& layout,
                                               const DtypePolicy& policy);

// The error for names that a source lacks; `missing` is not empty.
absl::Status MissingTensors(const CheckpointIndex& index, const std::vector<std::string>& missing,
                            uint32_t rank);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_RESOLVED_TARGET_H_
