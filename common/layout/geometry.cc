#include "common/layout/layout.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/checked_math.h"
#include "common/layout/intervals.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

constexpr size_t kMaxPlacedBoxes = 4096;

absl::Status Mismatch(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch, sentence);
}

// One cut of a tensor dimension, by the coordinate along `mesh_dim`.
struct Step {
  size_t mesh_dim = 0;
  uint64_t split_factor = 1;  // 1: plain ceil-chunks
};

// The tensor dimension that a placement cuts. Negative ones count from the end.
absl::StatusOr<size_t> CutDim(int64_t dim, const Shape& shape) {
  const auto dims = static_cast<int64_t>(shape.size());
  const int64_t normal = dim < 0 ? dim + dims : dim;
  if (normal < 0 || normal >= dims) {
    return Mismatch(fmt::format(
        "dimension {} of a tensor with {} dimension(s) ([{}]) cannot be sharded; use replicate or "
        "another dimension",
        dim, dims, ShapeText(shape)));
  }
  return static_cast<size_t>(normal);
}

// The order in which FSDP2 and TP cut memory. A _StridedShard whose split factor is the number of
// parts of later mesh dimensions means "cut after those". Cutting in that order is exact also for
// uneven sizes, where cutting from left to right would give ranks other rows. Nullopt if no order
// explains the split factors.
std::optional<std::vector<Step>> MemoryOrder(const std::vector<Step>& steps, const Mesh& mesh) {
  std::vector<Step> order;
  for (size_t i = steps.size(); i-- > 0;) {
    uint64_t parts_before = 1;
    size_t at = 0;
    while (at < order.size() && parts_before != steps[i].split_factor) {
      parts_before *= mesh.shape[order[at].mesh_dim];
      ++at;
    }
    if (parts_before != steps[i].split_factor) return std::nullopt;
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), Step{steps[i].mesh_dim, 1});
  }
  return order;
}

// The cuts of each tensor dimension, in the order in which they happen.
absl::StatusOr<std::vector<std::vector<Step>>> StepsPerDim(const Sharding& sharding,
                                                           const Mesh& mesh, const Shape& shape) {
  std::vector<std::vector<Step>> steps(shape.size());
  std::vector<bool> strided(shape.size(), false);
  for (size_t i = 0; i < sharding.placements.size(); ++i) {
    const Placement& placement = sharding.placements[i];
    if (placement.kind == Placement::Kind::kReplicate) continue;
    CKPTD_ASSIGN_OR_RETURN(const size_t dim, CutDim(placement.dim, shape));
    if (mesh.shape[i] == 1) continue;  // it cuts nothing, and so causes no padding
    const bool is_strided = placement.kind == Placement::Kind::kStridedShard;
    steps[dim].push_back(Step{i, is_strided ? placement.split_factor : uint64_t{1}});
    if (is_strided) strided[dim] = true;
  }
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (!strided[dim]) continue;
    if (auto order = MemoryOrder(steps[dim], mesh); order.has_value()) {
      steps[dim] = *std::move(order);
    }
  }
  return steps;
}

absl::StatusOr<Intervals> Cut(const Intervals& from, const Step& step, const Mesh& mesh,
                              uint64_t coordinate) {
  const uint64_t parts = mesh.shape[step.mesh_dim];
  if (step.split_factor == 1) return ChunkOf(from, parts, coordinate);
  auto cut = StridedChunkOf(from, step.split_factor, parts, coordinate);
  if (!cut.has_value()) {
    return Mismatch(fmt::format(
        "strided_shard with split factor {} scatters {} rows into more than {} runs; check the "
        "split factor (it is the number of tensor-parallel shards of that dimension)",
        step.split_factor, CountOf(from), kMaxIntervals));
  }
  return *std::move(cut);
}

// The part of one tensor dimension that one rank keeps.
struct DimResult {
  Intervals kept;
  uint64_t first_chunk = 0;  // length of chunk 0 of the last cut, which is FSDP2's padded size
  bool last_cut_even = true;
};

absl::StatusOr<DimResult> CutOneDim(uint64_t size, const std::vector<Step>& steps,
                                    const Mesh& mesh, const std::vector<uint32_t>& coordinates) {
  DimResult result;
  if (size != 0) result.kept = {{0, size}};
  result.first_chunk = size;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (i + 1 == steps.size()) {
      CKPTD_ASSIGN_OR_RETURN(const Intervals first, Cut(result.kept, step, mesh, 0));
      result.first_chunk = CountOf(first);
      result.last_cut_even = CountOf(result.kept) % mesh.shape[step.mesh_dim] == 0;
    }
    CKPTD_ASSIGN_OR_RETURN(result.kept,
                           Cut(result.kept, step, mesh, coordinates[step.mesh_dim]));
  }
  return result;
}

// Every combination of one interval per dimension. No dimension may be empty.
absl::StatusOr<std::vector<PlacedBox>> BoxesOf(const std::vector<DimResult>& dims) {
  size_t total = 1;
  for (const DimResult& dim : dims) {
    total *= dim.kept.size();
    if (total > kMaxPlacedBoxes) {
      return Mismatch(fmt::format(
          "the placements scatter the tensor into more than {} boxes on one rank; shard fewer "
          "dimensions with strided_shard",
          kMaxPlacedBoxes));
    }
  }
  std::vector<PlacedBox> boxes(1);
  for (const DimResult& dim : dims) {
    std::vector<PlacedBox> longer;
    longer.reserve(boxes.size() * dim.kept.size());
    for (const PlacedBox& box : boxes) {
      uint64_t local = 0;
      for (const Interval& run : dim.kept) {
        longer.push_back(box);
        longer.back().global.offsets.push_back(run.begin);
        longer.back().global.extents.push_back(run.end - run.begin);
        longer.back().local.push_back(local);
        local += run.end - run.begin;
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

absl::Status TooLarge(const Shape& shape) {
  return Mismatch(fmt::format("a tensor of shape [{}] has more elements than 64 bits can count",
                              ShapeText(shape)));
}

// Sets padded_elements. `padded` is the local shape with its padding.
absl::Status FinishPadding(const Shape& padded, LocalGeometry& geometry) {
  const auto elements = CheckedElements(padded);
  if (!elements.has_value()) return TooLarge(padded);
  geometry.padded_elements = *elements;
  return absl::OkStatus();
}

absl::StatusOr<Shape> PaddedShape(const Sharding& sharding, const std::vector<DimResult>& dims,
                                  const Shape& global_shape, const Shape& local_shape) {
  Shape padded = local_shape;
  if (!sharding.padded_dim.has_value()) return padded;
  // A tensor without dimensions is never cut, so it has no padding.
  if (global_shape.empty()) return padded;
  CKPTD_ASSIGN_OR_RETURN(const size_t dim, CutDim(*sharding.padded_dim, global_shape));
  if (dim != 0 && !dims[dim].last_cut_even) {
    return Mismatch(fmt::format(
        "dimension {} of shape [{}] does not divide evenly; FSDP2 pads only dimension 0: shard "
        "dimension 0 or choose another number of ranks",
        dim, ShapeText(global_shape)));
  }
  padded[dim] = dims[dim].first_chunk;
  return padded;
}

absl::StatusOr<LocalGeometry> ResolvePlacements(const Sharding& sharding, const Mesh& mesh,
                                                const Shape& shape, uint32_t rank) {
  CKPTD_RETURN_IF_ERROR(CheckMeshShape(mesh));
  LocalGeometry geometry;
  const auto coordinates = CoordinatesOf(mesh, rank);
  if (!coordinates.has_value()) {
    geometry.present = false;
    geometry.local_shape = {0};
    return geometry;
  }
  CKPTD_ASSIGN_OR_RETURN(const auto steps, StepsPerDim(sharding, mesh, shape));
  std::vector<DimResult> dims;
  dims.reserve(shape.size());
  bool holds_something = true;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    CKPTD_ASSIGN_OR_RETURN(DimResult result,
                           CutOneDim(shape[dim], steps[dim], mesh, *coordinates));
    geometry.local_shape.push_back(CountOf(result.kept));
    holds_something = holds_something && geometry.local_shape.back() != 0;
    dims.push_back(std::move(result));
  }
  CKPTD_ASSIGN_OR_RETURN(const Shape padded,
                         PaddedShape(sharding, dims, shape, geometry.local_shape));
  CKPTD_RETURN_IF_ERROR(FinishPadding(padded, geometry));
  if (holds_something) {
    CKPTD_ASSIGN_OR_RETURN(geometry.boxes, BoxesOf(dims));
  }
  return geometry;
}

absl::Status CheckBoxFits(const Box& box, const Box& first, const Shape& shape) {
  const std::string text = fmt::format("box [{}] + [{}]", ShapeText(box.offsets),
                                       ShapeText(box.extents));
  if (box.offsets.size() != shape.size() || box.extents.size() != shape.size()) {
    return Mismatch(fmt::format("{} needs {} offsets and extents, as shape [{}] has", text,
                                shape.size(), ShapeText(shape)));
  }
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offsets[dim] > shape[dim] || box.extents[dim] > shape[dim] - box.offsets[dim]) {
      return Mismatch(fmt::format("{} ends outside of shape [{}] in dimension {}", text,
                                  ShapeText(shape), dim));
    }
    if (dim > 0 && box.extents[dim] != first.extents[dim]) {
      return Mismatch(fmt::format(
          "{} has {} elements in dimension {} where the first box has {}: boxes are joined along "
          "dimension 0, so all other extents must agree",
          text, box.extents[dim], dim, first.extents[dim]));
    }
  }
  return absl::OkStatus();
}

// Joins boxes along local dimension 0, in the given order.
absl::StatusOr<LocalGeometry> ResolveBoxes(const std::vector<Box>& boxes, const Shape& shape) {
  LocalGeometry geometry;
  if (shape.empty() && boxes.size() != 1) {
    return Mismatch("a tensor without dimensions is one box; name exactly one or none");
  }
  uint64_t rows = 0;
  std::vector<Box> solid;
  for (const Box& box : boxes) {
    CKPTD_RETURN_IF_ERROR(CheckBoxFits(box, boxes.front(), shape));
    const auto elements = CheckedElements(box.extents);
    if (!elements.has_value()) return TooLarge(box.extents);
    if (*elements != 0) {
      PlacedBox placed{box, Shape(shape.size(), 0)};
      if (!shape.empty()) placed.local[0] = rows;
      geometry.boxes.push_back(std::move(placed));
      solid.push_back(box);
    }
    if (shape.empty()) continue;
    const auto sum = CheckedAdd(rows, box.extents[0]);
    if (!sum.has_value()) return TooLarge(box.extents);
    rows = *sum;
  }
  if (const auto overlap = FindOverlap(solid); overlap.has_value()) {
    const Box& box = solid[*overlap];
    return Mismatch(fmt::format("box [{}] + [{}] overlaps another box of the same tensor",
                                ShapeText(box.offsets), ShapeText(box.extents)));
  }
  geometry.local_shape = boxes.front().extents;
  if (!shape.empty()) geometry.local_shape[0] = rows;
  CKPTD_RETURN_IF_ERROR(FinishPadding(geometry.local_shape, geometry));
  return geometry;
}

}  // namespace

absl::StatusOr<LocalGeometry> ResolveSharding(const Sharding& sharding,
                                              const std::vector<Mesh>& meshes,
                                              const Shape& global_shape, uint32_t rank) {
  CKPTD_RETURN_IF_ERROR(CheckSharding(sharding, meshes));
  CKPTD_RETURN_IF_ERROR(CheckDims(global_shape));
  if (!CheckedElements(global_shape).has_value()) return TooLarge(global_shape);
  if (sharding.mesh.has_value()) {
    return ResolvePlacements(sharding, meshes[*sharding.mesh], global_shape, rank);
  }
  if (!sharding.boxes.empty()) return ResolveBoxes(sharding.boxes, global_shape);
  return ResolveBoxes({Box{Shape(global_shape.size(), 0), global_shape}}, global_shape);
}

}  // namespace ckptd
