#include "common/layout/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr size_t kMaxMeshDims = 8;
constexpr size_t kMaxBoxes = 65536;

absl::Status Invalid(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid, sentence);
}

bool Intersect(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    if (a.offsets[dim] >= b.offsets[dim] + b.extents[dim]) return false;
    if (b.offsets[dim] >= a.offsets[dim] + a.extents[dim]) return false;
  }
  return true;
}

// The dimension along which the fewest pairs of boxes overlap. Sweeping along it is fast for
// columns and for rows.
size_t DimOfFewestPairs(const std::vector<Box>& boxes) {
  size_t best = 0;
  uint64_t fewest = std::numeric_limits<uint64_t>::max();
  std::vector<uint64_t> starts(boxes.size());
  for (size_t dim = 0; dim < boxes[0].offsets.size(); ++dim) {
    std::transform(boxes.begin(), boxes.end(), starts.begin(),
                   [dim](const Box& box) { return box.offsets[dim]; });
    std::sort(starts.begin(), starts.end());
    const auto before = [&starts](uint64_t at) {
      return static_cast<uint64_t>(std::lower_bound(starts.begin(), starts.end(), at) -
                                   starts.begin());
    };
    // Each pair is counted at the box that starts first, or at both if they start together.
    uint64_t pairs = 0;
    for (const Box& box : boxes) {
      pairs += before(box.offsets[dim] + box.extents[dim]) - before(box.offsets[dim]);
    }
    if (pairs < fewest) {
      fewest = pairs;
      best = dim;
    }
  }
  return best;
}

absl::Status CheckNamesDiffer(const RankLayout& layout) {
  std::vector<std::string_view> names;
  names.reserve(layout.targets.size());
  for (const TargetSpec& target : layout.targets) {
    names.push_back(target.name);
    names.insert(names.end(), target.aliases.begin(), target.aliases.end());
  }
  for (const FlatParameter& flat : layout.flats) names.push_back(flat.name);
  if (!std::is_sorted(names.begin(), names.end())) std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return Invalid(fmt::format(
      "the layout of this rank asks for tensor '{}' twice; state each name once", *twice));
}

absl::Status CheckFlats(const RankLayout& layout) {
  std::vector<bool> has_member(layout.flats.size());
  for (const TargetSpec& target : layout.targets) {
    if (!target.flat.has_value()) continue;
    const Sharding& own = layout.shardings[target.sharding];
    const bool sound = target.flat->flat < layout.flats.size() && !target.optional &&
                       !own.mesh.has_value() && own.boxes.empty();
    if (!sound) {
      return WithFact(Invalid(fmt::format("tensor '{}' is no member of flat parameter {} of {}: "
                                          "members have a plain sharding and are not optional",
                                          target.name, target.flat->flat, layout.flats.size())),
                      "tensor", target.name);
    }
    has_member[target.flat->flat] = true;
  }
  for (size_t i = 0; i < layout.flats.size(); ++i) {
    const FlatParameter& flat = layout.flats[i];
    if (has_member[i] && flat.sharding < layout.shardings.size()) continue;
    return WithFact(Invalid(fmt::format("flat parameter '{}' names sharding {} of {} and has {}; "
                                        "it needs one that exists, and a member",
                                        flat.name, flat.sharding, layout.shardings.size(),
                                        has_member[i] ? "members" : "no member")),
                    "tensor", flat.name);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDims(const Shape& shape) {
  if (shape.size() <= kMaxTensorDims) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   fmt::format("a tensor has {} dimensions; at most {} are possible", shape.size(),
                               kMaxTensorDims));
}

std::string ShapeText(const Shape& shape) {
  const size_t shown = std::min(shape.size(), kMaxTensorDims);
  std::string text = fmt::format(
      "{}", fmt::join(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(shown), ","));
  return shown < shape.size() ? text + ",..." : text;
}

absl::Status CheckMeshShape(const Mesh& mesh) {
  if (mesh.shape.empty() || mesh.shape.size() > kMaxMeshDims) {
    return Invalid(fmt::format("a mesh has 1 to {} dimensions, not {}", kMaxMeshDims,
                               mesh.shape.size()));
  }
  const auto text = [&mesh] { return fmt::format("mesh of shape {}", fmt::join(mesh.shape, "x")); };
  uint64_t count = 1;
  for (const uint32_t size : mesh.shape) {
    count *= size;
    if (size == 0 || count > LayoutRules::kMaxWorldSize) {
      return Invalid(
          fmt::format("a {} must hold 1 to {} ranks", text(), LayoutRules::kMaxWorldSize));
    }
  }
  if (!mesh.dim_names.empty() && mesh.dim_names.size() != mesh.shape.size()) {
    return Invalid(fmt::format("a {} has {} dim_names; give one per dimension or none", text(),
                               mesh.dim_names.size()));
  }
  if (mesh.ranks.size() != count) {
    return Invalid(fmt::format("a {} needs {} ranks but lists {}", text(), count,
                               mesh.ranks.size()));
  }
  return absl::OkStatus();
}

std::string NamesText(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 5;
  const auto shown = static_cast<std::ptrdiff_t>(std::min(kNamed, names.size()));
  const std::vector<std::string> first(names.begin(), names.begin() + shown);
  return fmt::format("'{}'{}", fmt::join(first, "', '"),
                     names.size() > kNamed ? fmt::format(" and {} more", names.size() - kNamed)
                                           : "");
}

absl::Status CheckMesh(const Mesh& mesh) {
  CKPTD_RETURN_IF_ERROR(CheckMeshShape(mesh));
  std::vector<uint32_t> ranks = mesh.ranks;
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  if (twice != ranks.end()) {
    return Invalid(fmt::format("a mesh of shape {} lists rank {} twice", fmt::join(mesh.shape, "x"),
                               *twice));
  }
  return absl::OkStatus();
}

absl::Status CheckSharding(const Sharding& sharding, const std::vector<Mesh>& meshes) {
  if (!sharding.mesh.has_value()) {
    if (!sharding.placements.empty() || sharding.padded_dim.has_value()) {
      return Invalid("placements and padding need a mesh; name one or leave both out");
    }
    if (sharding.boxes.size() > kMaxBoxes) {
      return Invalid(fmt::format("a tensor has {} boxes; at most {} are allowed",
                                 sharding.boxes.size(), kMaxBoxes));
    }
    return absl::OkStatus();
  }
  if (*sharding.mesh >= meshes.size()) {
    return Invalid(fmt::format("a sharding names mesh {} of {}", *sharding.mesh, meshes.size()));
  }
  if (!sharding.boxes.empty()) return Invalid("a sharding has placements or boxes, not both");
  const size_t dims = meshes[*sharding.mesh].shape.size();
  if (sharding.placements.size() != dims) {
    return Invalid(fmt::format("a sharding has {} placements for a mesh of {} dimension(s); give "
                               "one per mesh dimension",
                               sharding.placements.size(), dims));
  }
  for (const Placement& placement : sharding.placements) {
    if (placement.kind == Placement::Kind::kStridedShard && placement.split_factor == 0) {
      return Invalid("strided_shard has split factor 0; it must be at least 1");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRankLayout(const RankLayout& layout) {
  if (layout.rank >= layout.world_size) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kWrongRank,
                     fmt::format("rank {} is not in a world of {} rank(s); ranks start at 0",
                                 layout.rank, layout.world_size));
  }
  for (const Mesh& mesh : layout.meshes) CKPTD_RETURN_IF_ERROR(CheckMesh(mesh));
  for (const Sharding& sharding : layout.shardings) {
    CKPTD_RETURN_IF_ERROR(CheckSharding(sharding, layout.meshes));
  }
  for (const TargetSpec& target : layout.targets) {
    if (target.sharding >= layout.shardings.size()) {
      return WithFact(Invalid(fmt::format("tensor '{}' names sharding {} of {}", target.name,
                                          target.sharding, layout.shardings.size())),
                      "tensor", target.name);
    }
  }
  CKPTD_RETURN_IF_ERROR(CheckFlats(layout));
  return CheckNamesDiffer(layout);
}

std::optional<std::vector<uint32_t>> CoordinatesOf(const Mesh& mesh, uint32_t rank) {
  size_t position = rank;
  // Meshes are mostly 0..n-1 in order, so the obvious position is tried first.
  if (position >= mesh.ranks.size() || mesh.ranks[position] != rank) {
    const auto found = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
    if (found == mesh.ranks.end()) return std::nullopt;
    position = static_cast<size_t>(found - mesh.ranks.begin());
  }
  std::vector<uint32_t> coordinates(mesh.shape.size());
  for (size_t dim = mesh.shape.size(); dim-- > 0;) {
    coordinates[dim] = static_cast<uint32_t>(position % mesh.shape[dim]);
    position /= mesh.shape[dim];
  }
  return coordinates;
}

std::optional<size_t> FindOverlap(const std::vector<Box>& boxes) {
  if (boxes.size() < 2) return std::nullopt;
  if (boxes[0].offsets.empty()) return 0;
  const size_t sweep = DimOfFewestPairs(boxes);
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return boxes[a].offsets[sweep] < boxes[b].offsets[sweep];
  });
  for (size_t i = 0; i < order.size(); ++i) {
    const Box& box = boxes[order[i]];
    const uint64_t end = box.offsets[sweep] + box.extents[sweep];
    for (size_t j = i + 1; j < order.size() && boxes[order[j]].offsets[sweep] < end; ++j) {
      if (Intersect(box, boxes[order[j]])) return order[j];
    }
  }
  return std::nullopt;
}

}  // namespace ckptd
