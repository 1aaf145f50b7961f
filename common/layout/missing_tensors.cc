#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/resolved_target.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

bool EndsWithPart(std::string_view name, std::string_view part) {
  return name.size() > part.size() + 1 &&
         name.substr(name.size() - part.size()) == part &&
         name[name.size() - part.size() - 1] == '.';
}

// Looks for the same tensor with a longer or shorter prefix, by far the most common cause.
std::string PrefixHint(const CheckpointIndex& index, const std::string& name) {
  for (const TensorEntry& tensor : index.tensors) {
    if (EndsWithPart(tensor.name, name)) {
      return fmt::format("the source has '{}': add the prefix '{}' to the names asked for "
                         "(rename= of load_into takes it off)",
                         tensor.name,
                         std::string_view(tensor.name).substr(0, tensor.name.size() - name.size()));
    }
  }
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::string rest = name.substr(dot + 1);
    if (index.Find(rest) == nullptr) continue;
    return fmt::format("the source has '{}': remove the prefix '{}' from the names asked "
                       "for (rename= of load_into puts it on)", rest,
                       std::string_view(name).substr(0, dot + 1));
  }
  return {};
}

// Neighbours in name order have the longest common prefixes.
std::string NeighbourHint(const CheckpointIndex& index, const std::string& name) {
  if (index.tensors.empty()) return "the source has no tensors";
  auto next = std::lower_bound(
      index.tensors.begin(), index.tensors.end(), name,
      [](const TensorEntry& tensor, const std::string& wanted) { return tensor.name < wanted; });
  if (next == index.tensors.begin()) return fmt::format("the source begins with '{}'", next->name);
  const auto before = std::prev(next);
  if (next == index.tensors.end()) return fmt::format("nearby the source has '{}'", before->name);
  return fmt::format("nearby the source has '{}' and '{}'", before->name, next->name);
}

}  // namespace

absl::Status MissingTensors(const CheckpointIndex& index, const std::vector<std::string>& missing,
                            uint32_t rank) {
  std::string hint = PrefixHint(index, missing.front());
  if (hint.empty()) hint = NeighbourHint(index, missing.front());
  return MakeError(
      absl::StatusCode::kNotFound, reason::kTensorNotFound,
      fmt::format("{} lacks {} tensor(s) that rank {} asks for: {}; {}",
                  index.source.empty() ? "the source" : index.source, missing.size(), rank,
                  NamesText(missing), hint),
      {{"tensor", missing.front()},
       {"missing", std::to_string(missing.size())},
       {"rank", std::to_string(rank)}});
}

}  // namespace ckptd
