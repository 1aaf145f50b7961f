#include "common/plan/whole_tensors.h"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

// What is known of one tensor of the index while cohorts are gone through.
struct Holding {
  uint32_t cohorts = 0;  // that hold it whole
  uint32_t last = 0;     // cohort that holds it in any way, from 1
  Dtype dtype = Dtype::kUnspecified;
  bool apart = true;     // nothing speaks against it yet
};

// Where runs are shorter, each would be a message of its own, to all ranks.
constexpr uint64_t kLeastRun = 4096;

bool HasLongRuns(const Part& part) {
  return std::all_of(part.copies.begin(), part.copies.end(), [](const CopyOp& copy) {
    return copy.dims == 0 || copy.run_bytes >= kLeastRun;
  });
}

bool IsWhole(const TensorKind& kind, const RankLayout& layout, uint64_t least_bytes) {
  const auto& placements = kind.sharding->placements;
  const bool replicated = kind.sharding->boxes.empty() &&
                          std::all_of(placements.begin(), placements.end(), [](const Placement& p) {
                            return p.kind == Placement::Kind::kReplicate;
                          });
  if (!replicated) return false;
  const absl::StatusOr<Part> part = PartOf(kind, layout.meshes, layout.rank);
  return part.ok() && part->shape == *kind.shape && part->bytes == part->padded_bytes &&
         part->bytes >= least_bytes && HasLongRuns(*part);
}

void Count(const CheckpointIndex& index, const CohortPlan& cohort, uint32_t number,
           uint64_t least_bytes, std::vector<Holding>& holdings) {
  std::vector<bool> whole;
  for (const TensorKind& kind : cohort.kinds()) {
    whole.push_back(IsWhole(kind, cohort.layout(), least_bytes));
  }
  for (const CohortPlan::Item& item : cohort.items()) {
    Holding& holding = holdings[static_cast<size_t>(item.source - index.tensors.data())];
    const Dtype dtype = cohort.kinds()[item.kind].to;
    if (holding.last == number || (holding.cohorts > 0 && holding.dtype != dtype)) {
      holding.apart = false;
    }
    holding.last = number;
    holding.dtype = dtype;
    if (whole[item.kind]) ++holding.cohorts;
  }
}

// Rules out tensors of which other tensors have bytes.
void LeaveOutShared(const CheckpointIndex& index, std::vector<Holding>& holdings) {
  struct Extent {
    FilePlace begin;
    uint64_t end;
    size_t tensor;
  };
  std::vector<Extent> extents;
  for (size_t i = 0; i < index.tensors.size(); ++i) {
    for (const Piece& piece : index.tensors[i].pieces) {
      if (piece.bytes == 0) continue;
      const uint64_t end = piece.offset + SpanOf(piece, index.tensors[i].dtype);
      extents.push_back({{piece.file, piece.offset}, end, i});
    }
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  const Extent* furthest = nullptr;  // of those before
  for (const Extent& extent : extents) {
    const bool overlaps = furthest != nullptr && furthest->begin.file == extent.begin.file &&
                          furthest->end > extent.begin.offset;
    if (overlaps) holdings[extent.tensor].apart = holdings[furthest->tensor].apart = false;
    if (!overlaps || extent.end > furthest->end) furthest = &extent;
  }
}

}  // namespace

std::vector<uint32_t> FindWholeTensors(const CheckpointIndex& index,
                                       std::span<const CohortPlan* const> cohorts,
                                       uint64_t least_bytes) {
  std::vector<Holding> holdings(index.tensors.size());
  uint32_t number = 0;
  for (const CohortPlan* cohort : cohorts) Count(index, *cohort, ++number, least_bytes, holdings);
  LeaveOutShared(index, holdings);
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < holdings.size(); ++i) {
    if (number > 0 && holdings[i].cohorts == number && holdings[i].apart) found.push_back(i);
  }
  return found;
}

absl::StatusOr<WholeTensors> WholeTensors::Of(const CheckpointIndex& index,
                                              std::span<const uint32_t> numbers) {
  WholeTensors whole;
  for (const uint32_t number : numbers) {
    if (number >= index.tensors.size()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("taking part in a scatter: it is to broadcast tensor number {} "
                                   "of {}; run the same ckptd on every rank",
                                   number, index.tensors.size()));
    }
    const TensorEntry& tensor = index.tensors[number];
    for (const Piece& piece : tensor.pieces) {
      if (piece.bytes == 0) continue;
      whole.ranges_.push_back(
          {{piece.file, piece.offset}, piece.offset + SpanOf(piece, tensor.dtype)});
    }
  }
  std::sort(whole.ranges_.begin(), whole.ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return whole;
}

bool WholeTensors::Has(const CopyOp& op) const {
  const FilePlace place{op.file, op.file_offset};
  const auto next = std::partition_point(ranges_.begin(), ranges_.end(),
                                         [&](const Range& range) { return range.begin <= place; });
  if (next == ranges_.begin()) return false;
  const Range& range = *std::prev(next);
  return range.begin.file == op.file && op.file_offset < range.end;
}

}  // namespace ckptd
