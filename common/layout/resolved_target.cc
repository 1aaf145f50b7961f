#include "common/layout/resolved_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/glob.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

absl::Status Mismatch(const std::string& name, const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch, sentence,
                   {{"tensor", name}});
}

// Finds tensors without a search if they are requested in name order.
class Finder {
 public:
  explicit Finder(const CheckpointIndex& index) : index_(index) {}
  const TensorEntry* Find(const std::string& name) {
    if (next_ < index_.tensors.size() && index_.tensors[next_].name == name) {
      return &index_.tensors[next_++];
    }
    const TensorEntry* found = index_.Find(name);
    if (found != nullptr) next_ = static_cast<size_t>(found - index_.tensors.data()) + 1;
    return found;
  }

 private:
  const CheckpointIndex& index_;
  size_t next_ = 0;
};

absl::Status CheckAlias(const TargetSpec& target, const std::string& alias,
                        const TensorEntry& source, const TensorEntry& other) {
  if (source.shape == other.shape && source.dtype == other.dtype) return absl::OkStatus();
  return Mismatch(target.name,
                  fmt::format("tensors '{}' and '{}' are to share memory but the source has {} "
                              "[{}] and {} [{}]; ask for them separately",
                              target.name, alias, NameOf(source.dtype),
                              ShapeText(source.shape), NameOf(other.dtype),
                              ShapeText(other.shape)));
}

// The source tensor of a target. Null if the source has none of its names.
absl::StatusOr<const TensorEntry*> SourceOf(const TargetSpec& target, Finder& finder,
                                            const CheckpointIndex& index) {
  const TensorEntry* source = finder.Find(target.name);
  for (const std::string& alias : target.aliases) {
    const TensorEntry* other = index.Find(alias);
    if (other == nullptr) continue;
    if (source == nullptr) source = other;
    CKPTD_RETURN_IF_ERROR(CheckAlias(target, alias, *source, *other));
  }
  return source;
}

bool KeepsF32(const TargetSpec& target, const DtypePolicy& policy) {
  for (const std::string& pattern : policy.keep_f32) {
    if (MatchesGlob(pattern, target.name)) return true;
    for (const std::string& alias : target.aliases) {
      if (MatchesGlob(pattern, alias)) return true;
    }
  }
  return false;
}

absl::StatusOr<Dtype> DtypeOf(const TargetSpec& target, Dtype source, const DtypePolicy& policy) {
  if (target.dtype != Dtype::kUnspecified) {
    if (target.dtype == source || (IsCastable(source) && IsCastable(target.dtype))) {
      return target.dtype;
    }
    return Mismatch(target.name,
                    fmt::format("tensor '{}' is {} in the source and asked for as {}; only F16, "
                                "BF16, F32 and F64 are cast: ask for {} or leave the dtype out",
                                target.name, NameOf(source), NameOf(target.dtype),
                                NameOf(source)));
  }
  if (!IsCastable(source)) return source;
  if (!policy.keep_f32.empty() && KeepsF32(target, policy)) return Dtype::kF32;
  return policy.cast_to == Dtype::kUnspecified ? source : policy.cast_to;
}

absl::Status CheckPolicy(const DtypePolicy& policy) {
  if (policy.cast_to == Dtype::kUnspecified || IsCastable(policy.cast_to)) {
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                   fmt::format("the dtype policy casts to {}; only F16, BF16, F32 and F64 are "
                               "possible",
                               NameOf(policy.cast_to)));
}

absl::Status CheckShape(const TargetSpec& target, const TensorEntry& source) {
  if (!target.expected_shape.has_value() || *target.expected_shape == source.shape) {
    return absl::OkStatus();
  }
  // As in PyTorch, whose old files store a number in shape [1]. The reverse is a mismatch in
  // PyTorch, too.
  if (target.expected_shape->empty() && source.shape == Shape{1}) return absl::OkStatus();
  return Mismatch(target.name,
                  fmt::format("tensor '{}' has shape [{}] in the source and [{}] in the layout; "
                              "the checkpoint belongs to another model or configuration",
                              target.name, ShapeText(source.shape),
                              ShapeText(*target.expected_shape)));
}

absl::StatusOr<std::vector<ResolvedTarget>> Resolve(const CheckpointIndex& index, const RankLayout& layout,
                                                    const DtypePolicy& policy) {
  std::vector<ResolvedTarget> all;
  all.reserve(layout.targets.size());
  std::vector<std::string> missing;
  std::vector<std::string> skipped;
  Finder finder(index);
  for (const TargetSpec& target : layout.targets) {
    CKPTD_ASSIGN_OR_RETURN(const TensorEntry* source, SourceOf(target, finder, index));
    if (source == nullptr) {
      // A flat parameter with a missing member would have no defined form.
      const bool skips = layout.skip_missing && !target.flat.has_value();
      if (!target.optional) (skips ? skipped : missing).push_back(target.name);
      continue;
    }
    const absl::Status shape = CheckShape(target, *source);
    if (!shape.ok() && target.optional) continue;
    CKPTD_RETURN_IF_ERROR(shape);
    ResolvedTarget& wanted = all.emplace_back();
    CKPTD_ASSIGN_OR_RETURN(wanted.dtype, DtypeOf(target, source->dtype, policy));
    wanted.source = source;
    wanted.flat = target.flat;
    wanted.sharding = &layout.shardings[target.flat.has_value()
                                            ? layout.flats[target.flat->flat].sharding
                                            : target.sharding];
    wanted.name = target.name;
    wanted.aliases = target.aliases;
  }
  // If the source has none of the names, the names are wrong, and nothing is skipped.
  if (all.empty()) missing.insert(missing.end(), skipped.begin(), skipped.end());
  if (!missing.empty()) return MissingTensors(index, missing, layout.rank);
  return all;
}

// Chooses the canonical name of a tensor with several names.
void OrderNames(ResolvedTarget& wanted) {
  if (wanted.aliases.empty()) return;
  std::vector<std::string>& names = wanted.aliases;
  names.push_back(std::move(wanted.name));
  std::sort(names.begin(), names.end());
  auto own = std::find(names.begin(), names.end(), wanted.source->name);
  if (own == names.end()) own = names.begin();
  wanted.name = std::move(*own);
  names.erase(own);
}

}  // namespace

absl::StatusOr<std::vector<ResolvedTarget>> ResolveTargets(const CheckpointIndex& index,
                                                           const RankLayout& layout,
                                                           const DtypePolicy& policy) {
  CKPTD_RETURN_IF_ERROR(CheckPolicy(policy));
  CKPTD_ASSIGN_OR_RETURN(std::vector<ResolvedTarget> all, Resolve(index, layout, policy));
  for (ResolvedTarget& wanted : all) OrderNames(wanted);
  const auto by_name = [](const ResolvedTarget& a, const ResolvedTarget& b) { return a.name < b.name; };
  if (!std::is_sorted(all.begin(), all.end(), by_name)) {
    std::sort(all.begin(), all.end(), by_name);
  }
  return all;
}

}  // namespace ckptd
