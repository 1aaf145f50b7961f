// The modules that the names of tensors tell of: "a.b.weight" is a tensor of module "a.b",
// which is one of "a". Sizes are accelerate's (compute_module_sizes). Pure.
#ifndef CKPTD_COMMON_DEVICES_MODULE_TREE_H_
#define CKPTD_COMMON_DEVICES_MODULE_TREE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/layout/layout.h"
#include "common/source/index.h"

namespace ckptd {

struct ModuleNode {
  std::string name;  // FQN; empty for the root
  bool is_tensor = false;
  // Of all tensors from here on, each counted once, under its first name. In bits, because
  // accelerate takes a bool for an eighth of a byte.
  uint64_t bits = 0;
  bool has_size = false;  // false where all tensors are further names of tied ones
  size_t end = 0;         // nodes [own position, end) are this one and all below it
  std::vector<size_t> tensors;  // direct ones
  std::vector<size_t> modules;  // direct ones
};

struct ModuleTreeOptions {
  // Floating tensors get no larger than cast_to; those of keep_f32 count as F32.
  DtypePolicy dtypes;
  // Further names of tensors, beside the aliases of the index.
  std::map<std::string, std::string> tied;
  // Globs of FQNs, first to last: the order of modules that a checkpoint does not tell.
  // Others follow by what they are called, as most models have them: embeddings, attention
  // (its q, k, v, then what comes out), the rest with numbers by value, norms, heads.
  std::vector<std::string> order;
};

// The root first; then each node's tensors, then its modules with all below them.
struct ModuleTree {
  std::vector<ModuleNode> nodes;
  // Names of one tensor, sorted; two or more each.
  std::vector<std::vector<std::string>> ties;
  // For people: patterns of the options that describe nothing.
  std::vector<std::string> warnings;

  // Errors: InvalidArgument INVALID_REQUEST for a tied name of nothing, for a name that is
  // a tensor and a module, and for names or sizes beyond all use.
  static absl::StatusOr<ModuleTree> Make(const CheckpointIndex& index,
                                         const ModuleTreeOptions& options);
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_DEVICES_MODULE_TREE_H_
