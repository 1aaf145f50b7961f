#include "common/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/glob.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

struct Named {
  const std::string* name = nullptr;
  const TensorEntry* tensor = nullptr;
};

// Tensors and aliases together, sorted by name.
std::vector<Named> AllNames(const CheckpointIndex& index) {
  std::vector<Named> names;
  names.reserve(index.tensors.size() + index.aliases.size());
  for (const TensorEntry& tensor : index.tensors) names.push_back({&tensor.name, &tensor});
  for (const auto& [alias, name] : index.aliases) {
    const TensorEntry* tensor = index.Find(name);
    if (tensor != nullptr) names.push_back({&alias, tensor});
  }
  std::inplace_merge(names.begin(),
                     names.begin() + static_cast<std::ptrdiff_t>(index.tensors.size()),
                     names.end(),
                     [](const Named& a, const Named& b) { return *a.name < *b.name; });
  return names;
}

absl::Status NoRuleMatches(const std::string& name) {
  return MakeError(
      absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
      fmt::format("no rule of the layout matches tensor '{}' and there is no \"default\"; add a "
                  "rule, or a default such as {{}} (whole on every rank) or {{\"drop\": true}}",
                  name),
      {{"tensor", name}});
}

absl::Status WrongRank(uint32_t rank, const std::string& description, uint32_t world_size) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongRank,
                   fmt::format("rank {} is not in layout {}, which has {} rank(s)", rank,
                               description, world_size),
                   {{"rank", std::to_string(rank)}});
}

// Names of one source tensor that are laid out alike are one target: tied weights
// stay tied.
class TiedTargets {
 public:
  explicit TiedTargets(const CheckpointIndex& index) {
    for (const auto& [alias, name] : index.aliases) tied_[index.Find(name)];
  }
  // A target made before for the same tensor with an equal sharding and dtype.
  TargetSpec* Find(const TensorEntry* tensor, const Sharding& sharding, Dtype dtype,
                   RankLayout& layout) const {
    const auto at = tied_.find(tensor);
    if (at == tied_.end()) return nullptr;
    for (const size_t i : at->second) {
      TargetSpec& target = layout.targets[i];
      if (target.dtype == dtype && layout.shardings[target.sharding] == sharding) return &target;
    }
    return nullptr;
  }
  void Note(const TensorEntry* tensor, size_t target) {
    const auto at = tied_.find(tensor);
    if (at != tied_.end()) at->second.push_back(target);
  }

 private:
  std::map<const TensorEntry*, std::vector<size_t>> tied_;
};

}  // namespace

const LayoutRules::Rule* LayoutRules::Match(std::string_view name) const {
  for (const Rule& rule : rules_) {
    for (const std::string& pattern : rule.patterns) {
      if (MatchesGlob(pattern, name)) return &rule;
    }
  }
  return nullptr;
}

bool LayoutRules::Rule::Gives(uint32_t rank, const std::vector<Mesh>& meshes) const {
  if (drop) return false;
  if (!only_ranks.empty() && !std::binary_search(only_ranks.begin(), only_ranks.end(), rank)) {
    return false;
  }
  return !sharding.mesh.has_value() || CoordinatesOf(meshes[*sharding.mesh], rank).has_value();
}

absl::StatusOr<RankLayout> LayoutRules::ForRank(const CheckpointIndex& index,
                                                uint32_t rank) const {
  if (rank >= world_size_) return WrongRank(rank, description_, world_size_);
  RankLayout layout;
  layout.rank = rank;
  layout.world_size = world_size_;
  layout.meshes = meshes_;
  std::vector<bool> gives;
  for (const Rule& rule : rules_) {
    layout.shardings.push_back(rule.sharding);
    gives.push_back(rule.Gives(rank, meshes_));
  }
  const auto whole = static_cast<uint32_t>(layout.shardings.size());
  layout.shardings.emplace_back();
  const std::vector<Named> names = AllNames(index);
  layout.targets.reserve(names.size());
  TiedTargets tied(index);
  for (const Named& named : names) {
    const Rule* rule = Match(*named.name);
    if (rule == nullptr) return NoRuleMatches(*named.name);
    const auto number = static_cast<uint32_t>(rule - rules_.data());
    if (!gives[number]) continue;
    // As with a dtype policy: a pattern that casts is about the floating tensors.
    const bool casts = IsCastable(rule->dtype) && !IsCastable(named.tensor->dtype);
    const Dtype dtype = casts ? Dtype::kUnspecified : rule->dtype;
    const uint32_t sharding = named.tensor->shape.empty() ? whole : number;
    TargetSpec* twin = tied.Find(named.tensor, layout.shardings[sharding], dtype, layout);
    if (twin != nullptr) {
      twin->aliases.push_back(*named.name);
      continue;
    }
    tied.Note(named.tensor, layout.targets.size());
    TargetSpec& target = layout.targets.emplace_back();
    target.name = *named.name;
    target.sharding = sharding;
    target.dtype = dtype;
  }
  return layout;
}

}  // namespace ckptd
