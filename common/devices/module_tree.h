// The tree of modules that follows from the names of tensors: "a.b.weight" is a tensor of module
// "a.b", which is a submodule of "a". Sizes are accelerate's (compute_module_sizes). Pure.
#ifndef CKPTD_COMMON_DEVICES_MODULE_TREE_H_
#define CKPTD_COMMON_DEVICES_MODULE_TREE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/layout/layout.h"

namespace ckptd {

struct ModuleNode {
  std::string name;  // FQN; empty for the root
  bool is_tensor = false;
  // Size of all tensors in this subtree, each counted once, under its first name. In bits,
  // because accelerate counts a bool as an eighth of a byte.
  uint64_t bits = 0;
  bool has_size = false;        // false if all tensors are further names of tied ones
  size_t end = 0;               // nodes [own index, end) are this subtree
  std::vector<size_t> tensors;  // direct children
  std::vector<size_t> modules;  // direct children
};

struct ModuleTreeOptions {
  // Floating tensors count with at most the size of cast_to. Those of keep_f32 count as F32.
  DtypePolicy dtypes;
  // Further names of tensors, in addition to the aliases of the index.
  std::map<std::string, std::string> tied;
  // Globs of FQNs that define the order of modules, which a checkpoint does not have. Other
  // modules are ordered by their names, as in most models: embeddings, attention (its q, k, v,
  // then its output), the rest with numbers by value, norms, heads.
  std::vector<std::string> order;
};

// The root first. Then, per node, its tensors, and its modules with their subtrees.
struct ModuleTree {
  std::vector<ModuleNode> nodes;
  // Groups of two or more names of one tensor, sorted.
  std::vector<std::vector<std::string>> ties;
  // For people: patterns of the options that match nothing.
  std::vector<std::string> warnings;

  // Errors: InvalidArgument INVALID_REQUEST for a tied name without a tensor, for a name that is
  // a tensor and a module, and for names or sizes beyond the limits.
  static absl::StatusOr<ModuleTree> Make(const CheckpointIndex& index,
                                         const ModuleTreeOptions& options);
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_DEVICES_MODULE_TREE_H_
