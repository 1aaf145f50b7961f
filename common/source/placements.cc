#include "common/source/placements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/intervals.h"

namespace ckptd {
namespace {

using MeshShape = std::vector<uint32_t>;

constexpr size_t kMaxPlacedBoxes = 4096;

absl::Status Mismatch(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch, sentence);
}

// One cut of a tensor dimension, by the coordinate along `mesh_dim`.
struct Step {
  size_t mesh_dim = 0;
  uint64_t split_factor = 1;  // 1: plain ceil-chunks
};

// The order in which FSDP2 and TP cut memory. A _StridedShard whose split factor is the number of
// parts of later mesh dimensions means "cut after those". Cutting in that order is exact also for
// uneven sizes, where cutting from left to right would give ranks other rows. Nullopt if no order
// explains the split factors.
std::optional<std::vector<Step>> MemoryOrder(const std::vector<Step>& steps,
                                             const MeshShape& mesh) {
  std::vector<Step> order;
  for (size_t i = steps.size(); i-- > 0;) {
    uint64_t parts_before = 1;
    size_t at = 0;
    while (at < order.size() && parts_before != steps[i].split_factor) {
      parts_before *= mesh[order[at].mesh_dim];
      ++at;
    }
    if (parts_before != steps[i].split_factor) return std::nullopt;
    order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), Step{steps[i].mesh_dim, 1});
  }
  return order;
}

// The cuts of each tensor dimension, in the order in which they happen.
absl::StatusOr<std::vector<std::vector<Step>>> StepsPerDim(const std::vector<Placement>& placements,
                                                           const MeshShape& mesh,
                                                           const Shape& shape) {
  std::vector<std::vector<Step>> steps(shape.size());
  std::vector<bool> strided(shape.size(), false);
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& placement = placements[i];
    if (placement.kind == Placement::Kind::kReplicate) continue;
    CKPTD_ASSIGN_OR_RETURN(const size_t dim, CutDim(placement.dim, shape));
    if (mesh[i] == 1) continue;  // it cuts nothing, and so causes no padding
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

absl::StatusOr<Intervals> Cut(const Intervals& from, const Step& step, const MeshShape& mesh,
                              uint64_t coordinate) {
  const uint64_t parts = mesh[step.mesh_dim];
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
  CutTensor::Dim facts;
};

absl::StatusOr<DimResult> CutOneDim(uint64_t size, const std::vector<Step>& steps,
                                    const MeshShape& mesh,
                                    const std::vector<uint32_t>& coordinates) {
  DimResult result;
  if (size != 0) result.kept = {{0, size}};
  result.facts.first_chunk = size;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    if (i + 1 == steps.size()) {
      CKPTD_ASSIGN_OR_RETURN(const Intervals first, Cut(result.kept, step, mesh, 0));
      result.facts.first_chunk = CountOf(first);
      result.facts.last_cut_even = CountOf(result.kept) % mesh[step.mesh_dim] == 0;
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

}  // namespace

absl::StatusOr<size_t> CutDim(int64_t dim, const Shape& shape) {
  const auto dims = static_cast<int64_t>(shape.size());
  const int64_t normal = dim < 0 ? dim + dims : dim;
  if (normal < 0 || normal >= dims) {
    return Mismatch(fmt::format(
        "dimension {} of a tensor with {} dimension(s) ([{}]) cannot be sharded; use replicate or "
        "another dimension",
        dim, dims, fmt::join(shape, ",")));
  }
  return static_cast<size_t>(normal);
}

absl::StatusOr<CutTensor> CutByPlacements(const std::vector<Placement>& placements,
                                          const std::vector<uint32_t>& mesh_shape,
                                          const std::vector<uint32_t>& coordinates,
                                          const Shape& shape) {
  CutTensor out;
  CKPTD_ASSIGN_OR_RETURN(const auto steps, StepsPerDim(placements, mesh_shape, shape));
  std::vector<DimResult> dims;
  dims.reserve(shape.size());
  bool holds_something = true;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    CKPTD_ASSIGN_OR_RETURN(DimResult result,
                           CutOneDim(shape[dim], steps[dim], mesh_shape, coordinates));
    out.local_shape.push_back(CountOf(result.kept));
    out.dims.push_back(result.facts);
    holds_something = holds_something && out.local_shape.back() != 0;
    dims.push_back(std::move(result));
  }
  if (holds_something) {
    CKPTD_ASSIGN_OR_RETURN(out.boxes, BoxesOf(dims));
  }
  return out;
}

}  // namespace ckptd
