#include "common/layout/layout.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

absl::Status Mismatch(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch, sentence);
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

absl::StatusOr<Shape> PaddedShape(const Sharding& sharding, const CutTensor& cut,
                                  const Shape& global_shape) {
  Shape padded = cut.local_shape;
  if (!sharding.padded_dim.has_value()) return padded;
  // A tensor without dimensions is never cut, so it has no padding.
  if (global_shape.empty()) return padded;
  CKPTD_ASSIGN_OR_RETURN(const size_t dim, CutDim(*sharding.padded_dim, global_shape));
  if (dim != 0 && !cut.dims[dim].last_cut_even) {
    return Mismatch(fmt::format(
        "dimension {} of shape [{}] does not divide evenly; FSDP2 pads only dimension 0: shard "
        "dimension 0 or choose another number of ranks",
        dim, ShapeText(global_shape)));
  }
  padded[dim] = cut.dims[dim].first_chunk;
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
  CKPTD_ASSIGN_OR_RETURN(CutTensor cut, CutByPlacements(sharding.placements, mesh.shape,
                                                         *coordinates, shape));
  CKPTD_ASSIGN_OR_RETURN(const Shape padded, PaddedShape(sharding, cut, shape));
  CKPTD_RETURN_IF_ERROR(FinishPadding(padded, geometry));
  geometry.boxes = std::move(cut.boxes);
  geometry.local_shape = std::move(cut.local_shape);
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
