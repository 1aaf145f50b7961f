// Second half of planning: geometry, copies, places in the slab.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/layout/box_copy.h"
#include "common/layout/checked_math.h"
#include "common/layout/plan.h"
#include "common/layout/plan_digest.h"
#include "common/layout/validate.h"
#include "common/layout/wanted.h"

namespace ckptd {
namespace {

// Of one rank, about a gigabyte of plan. No layout that trains comes near; one that
// scatters every tensor must not take the daemon's memory.
constexpr size_t kMaxCopies = 4'000'000;

absl::Status NotCovered(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInternal, reason::kCoverage, sentence);
}

absl::Status TooManyCopies() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   fmt::format("the layout scatters this rank's tensors into more than {} copies; "
                               "use fewer boxes or smaller split factors",
                               kMaxCopies));
}

absl::Status TooManyBytes() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                   "the bytes of the shard do not fit 64 bits");
}

// Where a tensor begins in the files: the order of the slab.
struct FilePlace {
  uint32_t file = std::numeric_limits<uint32_t>::max();
  uint64_t offset = std::numeric_limits<uint64_t>::max();
  auto operator<=>(const FilePlace&) const = default;
};

FilePlace PlaceOf(const TensorEntry& source) {
  FilePlace first;
  for (const Piece& piece : source.pieces) {
    first = std::min(first, FilePlace{piece.file, piece.offset});
  }
  return first;
}

// A piece must be what it says before any address is computed from it.
absl::Status CheckPiece(const Piece& piece, const TensorEntry& source,
                        const CheckpointIndex& index) {
  const Box& box = piece.box;
  bool fits = piece.file < index.files.size() && box.offsets.size() == source.shape.size() &&
              box.extents.size() == source.shape.size();
  for (size_t dim = 0; fits && dim < source.shape.size(); ++dim) {
    fits = box.offsets[dim] <= source.shape[dim] &&
           box.extents[dim] <= source.shape[dim] - box.offsets[dim];
  }
  if (fits) {
    const auto elements = CheckedElements(box.extents);
    const auto bytes = elements.has_value() ? CheckedBytes(*elements, BitsOf(source.dtype))
                                            : std::nullopt;
    const uint64_t file_bytes = index.files[piece.file].bytes;
    fits = bytes == piece.bytes && piece.offset <= file_bytes &&
           piece.bytes <= file_bytes - piece.offset;
  }
  if (fits) return absl::OkStatus();
  return NotCovered(fmt::format("the index places {} bytes at offset {} of file {}, which is not "
                                "what its box or that file holds",
                                piece.bytes, piece.offset, piece.file));
}

using Pieces = absl::InlinedVector<const Piece*, 1>;

// Pieces that hold anything, checked and disjoint.
absl::StatusOr<Pieces> SolidPieces(const TensorEntry& source, const CheckpointIndex& index) {
  Pieces pieces;
  for (const Piece& piece : source.pieces) {
    CKPTD_RETURN_IF_ERROR(CheckPiece(piece, source, index));
    if (piece.bytes != 0) pieces.push_back(&piece);
  }
  if (pieces.size() < 2) return pieces;
  std::vector<Box> boxes;
  boxes.reserve(pieces.size());
  for (const Piece* piece : pieces) boxes.push_back(piece->box);
  if (FindOverlap(boxes).has_value()) return NotCovered("two pieces of the source overlap");
  return pieces;
}

// Plans tensor after tensor in slab order.
class Planner {
 public:
  Planner(const CheckpointIndex& index, const RankLayout& layout)
      : index_(index), layout_(layout) {
    plan_.rank = layout.rank;
  }

  void Reserve(size_t tensors) {
    plan_.tensors.reserve(tensors);
    plan_.ops.reserve(tensors);
  }

  absl::Status Add(Wanted& wanted);
  RankPlan Finish();

 private:
  absl::StatusOr<const LocalGeometry*> GeometryOf(const Wanted& wanted);
  absl::Status AddCopies(const Wanted& wanted, const LocalGeometry& geometry, uint64_t offset);
  void SortTensorsByName();
  void SortOps();

  const CheckpointIndex& index_;
  const RankLayout& layout_;
  RankPlan plan_;
  // Models have many tensors but few shapes.
  std::map<std::pair<const Sharding*, Shape>, LocalGeometry> geometries_;
};

absl::StatusOr<const LocalGeometry*> Planner::GeometryOf(const Wanted& wanted) {
  const std::pair key(wanted.sharding, wanted.source->shape);
  const auto known = geometries_.find(key);
  if (known != geometries_.end()) return &known->second;
  CKPTD_ASSIGN_OR_RETURN(
      LocalGeometry geometry,
      ResolveSharding(*wanted.sharding, layout_.meshes, wanted.source->shape, layout_.rank));
  return &geometries_.emplace(key, std::move(geometry)).first->second;
}

absl::Status Planner::Add(Wanted& wanted) {
  CKPTD_ASSIGN_OR_RETURN(const LocalGeometry* found, GeometryOf(wanted));
  const LocalGeometry& geometry = *found;
  if (!geometry.present) return absl::OkStatus();
  const uint32_t bits = BitsOf(wanted.dtype);
  const uint64_t elements = *CheckedElements(geometry.local_shape);
  const auto bytes = CheckedBytes(elements, bits);
  const auto padded_bytes = CheckedBytes(geometry.padded_elements, bits);
  if (!bytes.has_value() || !padded_bytes.has_value()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch,
                     fmt::format("its part on this rank is {} elements of {}, which is no whole "
                                 "number of bytes below 2^64",
                                 elements, NameOf(wanted.dtype)));
  }
  // The slab ends aligned, so the next tensor starts there.
  const uint64_t offset = plan_.slab_bytes;
  const auto end = CheckedAdd(offset, *padded_bytes);
  const auto aligned = end.has_value() ? CheckedAdd(*end, kSlabAlignment - 1) : std::nullopt;
  if (!aligned.has_value()) return TooManyBytes();
  CKPTD_RETURN_IF_ERROR(AddCopies(wanted, geometry, offset));
  plan_.slab_bytes = *aligned / kSlabAlignment * kSlabAlignment;
  plan_.tensor_bytes += *bytes;
  PlannedTensor& tensor = plan_.tensors.emplace_back();
  tensor.name = std::move(wanted.name);
  tensor.aliases = std::move(wanted.aliases);
  tensor.dtype = wanted.dtype;
  tensor.shape = geometry.local_shape;
  tensor.offset = offset;
  tensor.bytes = *bytes;
  tensor.padded_bytes = *padded_bytes;
  return absl::OkStatus();
}

// Coverage: boxes are disjoint and fill the local tensor, pieces are disjoint;
// so every element is written exactly once if and only if the counts agree.
absl::Status Planner::AddCopies(const Wanted& wanted, const LocalGeometry& geometry,
                                uint64_t offset) {
  CKPTD_ASSIGN_OR_RETURN(const auto pieces, SolidPieces(*wanted.source, index_));
  const auto tensor = static_cast<uint32_t>(plan_.tensors.size());
  uint64_t wanted_elements = 0;
  uint64_t written_elements = 0;
  for (const PlacedBox& placed : geometry.boxes) {
    wanted_elements += ElementCount(placed.global.extents);
    for (const Piece* piece : pieces) {
      const auto shared = Intersection(piece->box, placed.global);
      if (!shared.has_value()) continue;
      written_elements += ElementCount(shared->extents);
      CKPTD_ASSIGN_OR_RETURN(CopyOp op,
                             CopyOfBox(*shared, *piece, placed, geometry.local_shape,
                                       wanted.source->dtype, wanted.dtype));
      op.tensor = tensor;
      op.slab_offset += offset;
      if (plan_.ops.size() == kMaxCopies) return TooManyCopies();
      plan_.ops.push_back(op);
    }
  }
  const uint64_t local_elements = *CheckedElements(geometry.local_shape);
  if (wanted_elements == local_elements && written_elements == local_elements) {
    return absl::OkStatus();
  }
  return NotCovered(fmt::format("its {} elements on this rank would get {} from the files; the "
                                "source does not hold the whole tensor exactly once",
                                local_elements, written_elements));
}

void Planner::SortTensorsByName() {
  const auto by_name = [](const PlannedTensor& a, const PlannedTensor& b) {
    return a.name < b.name;
  };
  if (std::is_sorted(plan_.tensors.begin(), plan_.tensors.end(), by_name)) return;
  std::vector<uint32_t> order(plan_.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return by_name(plan_.tensors[a], plan_.tensors[b]);
  });
  std::vector<uint32_t> new_index(order.size());
  std::vector<PlannedTensor> sorted;
  sorted.reserve(order.size());
  for (const uint32_t old : order) {
    new_index[old] = static_cast<uint32_t>(sorted.size());
    sorted.push_back(std::move(plan_.tensors[old]));
  }
  plan_.tensors = std::move(sorted);
  for (CopyOp& op : plan_.ops) op.tensor = new_index[op.tensor];
}

void Planner::SortOps() {
  const auto before = [](const CopyOp& a, const CopyOp& b) {
    return std::tie(a.file, a.file_offset, a.slab_offset) <
           std::tie(b.file, b.file_offset, b.slab_offset);
  };
  if (!std::is_sorted(plan_.ops.begin(), plan_.ops.end(), before)) {
    std::sort(plan_.ops.begin(), plan_.ops.end(), before);
  }
}

RankPlan Planner::Finish() {
  SortTensorsByName();
  SortOps();
  plan_.digest = DigestOf(plan_);
  return std::move(plan_);
}

}  // namespace

absl::StatusOr<RankPlan> PlanRank(const CheckpointIndex& index, const RankLayout& layout,
                                  const DtypePolicy& policy) {
  CKPTD_RETURN_IF_ERROR(CheckRankLayout(layout));
  CKPTD_ASSIGN_OR_RETURN(std::vector<Wanted> wanted, FindWanted(index, layout, policy));
  std::vector<std::pair<FilePlace, uint32_t>> order;
  order.reserve(wanted.size());
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    order.emplace_back(PlaceOf(*wanted[i].source), i);
  }
  if (!std::is_sorted(order.begin(), order.end())) std::sort(order.begin(), order.end());
  Planner planner(index, layout);
  planner.Reserve(wanted.size());
  for (const auto& [place, i] : order) {
    const absl::Status status = planner.Add(wanted[i]);
    if (status.ok()) continue;
    return WithFact(WithContext(status, fmt::format("planning tensor '{}' for rank {}",
                                                    wanted[i].name, layout.rank)),
                    "tensor", wanted[i].name);
  }
  return planner.Finish();
}

}  // namespace ckptd
