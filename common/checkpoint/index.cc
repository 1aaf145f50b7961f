#include "common/checkpoint/index.h"

#include <algorithm>

namespace ckptd {

uint64_t ElementCount(const Shape& shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

const TensorEntry* CheckpointIndex::Find(const std::string& name) const {
  const auto alias = aliases.find(name);
  const std::string& wanted = alias == aliases.end() ? name : alias->second;
  const auto at = std::lower_bound(
      tensors.begin(), tensors.end(), wanted,
      [](const TensorEntry& tensor, const std::string& key) { return tensor.name < key; });
  return at != tensors.end() && at->name == wanted ? &*at : nullptr;
}

}  // namespace ckptd
