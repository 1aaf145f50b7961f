#include "common/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/glob.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

using Named = LayoutRules::RuledName;

// Tensors and aliases together, sorted by name.
std::vector<Named> AllNames(const CheckpointIndex& index) {
  std::vector<Named> names;
  names.reserve(index.tensors.size() + index.aliases.size());
  for (const TensorEntry& tensor : index.tensors) names.push_back({&tensor.name, &tensor, 0});
  for (const auto& [alias, name] : index.aliases) {
    const TensorEntry* tensor = index.Find(name);
    if (tensor != nullptr) names.push_back({&alias, tensor, 0});
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

// Joins names of one source tensor that have the same layout into one target, so that tied
// weights stay tied.
class TiedTargets {
 public:
  explicit TiedTargets(const CheckpointIndex& index) {
    for (const auto& [alias, name] : index.aliases) tied_[index.Find(name)];
  }
  // An earlier target of the same tensor with an equal sharding and dtype.
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

std::vector<bool> LayoutRules::GivesTo(uint32_t rank) const {
  std::vector<bool> gives;
  gives.reserve(rules_.size());
  for (const Rule& rule : rules_) gives.push_back(rule.Gives(rank, meshes_));
  return gives;
}

std::vector<std::pair<std::vector<bool>, std::vector<uint32_t>>> LayoutRules::ByRules(
    std::span<const uint32_t> ranks) const {
  std::vector<std::pair<std::vector<bool>, std::vector<uint32_t>>> sets;
  std::map<std::vector<bool>, size_t> known;
  for (const uint32_t rank : ranks) {
    std::vector<bool> gives = GivesTo(rank);
    const auto [at, fresh] = known.try_emplace(gives, sets.size());
    if (fresh) sets.push_back({std::move(gives), {}});
    sets[at->second].second.push_back(rank);
  }
  return sets;
}

RankLayout LayoutRules::LayoutOf(const CheckpointIndex& index, const RuledNames& names,
                                 const std::vector<bool>& gives, uint32_t rank) const {
  RankLayout layout;
  layout.rank = rank;
  layout.world_size = world_size_;
  layout.meshes = meshes_;
  for (const Rule& rule : rules_) layout.shardings.push_back(rule.sharding);
  const auto whole = static_cast<uint32_t>(layout.shardings.size());
  layout.shardings.emplace_back();
  layout.targets.reserve(names.size());
  TiedTargets tied(index);
  for (const auto& [name, tensor, number] : names) {
    if (!gives[number]) continue;
    const Rule& rule = rules_[number];
    // As with a dtype policy, a pattern that casts applies to floating tensors only.
    const bool casts = IsCastable(rule.dtype) && !IsCastable(tensor->dtype);
    const Dtype dtype = casts ? Dtype::kUnspecified : rule.dtype;
    const uint32_t sharding = tensor->shape.empty() ? whole : number;
    TargetSpec* twin = tied.Find(tensor, layout.shardings[sharding], dtype, layout);
    if (twin != nullptr) {
      twin->aliases.push_back(*name);
      continue;
    }
    tied.Note(tensor, layout.targets.size());
    TargetSpec& target = layout.targets.emplace_back();
    target.name = *name;
    target.sharding = sharding;
    target.dtype = dtype;
  }
  return layout;
}

absl::StatusOr<LayoutRules::RuledNames> LayoutRules::MatchAll(const CheckpointIndex& index) const {
  RuledNames names = AllNames(index);
  for (RuledName& named : names) {
    const Rule* rule = Match(*named.name);
    if (rule == nullptr) return NoRuleMatches(*named.name);
    named.rule = static_cast<uint32_t>(rule - rules_.data());
  }
  return names;
}

absl::StatusOr<std::vector<Cohort>> LayoutRules::ForRanks(const CheckpointIndex& index,
                                                          std::span<const uint32_t> ranks) const {
  for (const uint32_t rank : ranks) {
    if (rank >= world_size_) return WrongRank(rank, description_, world_size_);
  }
  CKPTD_ASSIGN_OR_RETURN(const RuledNames names, MatchAll(index));
  std::vector<Cohort> cohorts;
  for (auto& [gives, members] : ByRules(ranks)) {
    auto layout =
        std::make_shared<const RankLayout>(LayoutOf(index, names, gives, members.front()));
    cohorts.push_back({std::move(layout), std::move(members)});
  }
  return cohorts;
}

absl::StatusOr<RankLayout> LayoutRules::ForRank(const CheckpointIndex& index,
                                                uint32_t rank) const {
  if (rank >= world_size_) return WrongRank(rank, description_, world_size_);
  CKPTD_ASSIGN_OR_RETURN(const RuledNames names, MatchAll(index));
  return LayoutOf(index, names, GivesTo(rank), rank);
}

}  // namespace ckptd
