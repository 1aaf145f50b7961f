#include "common/plan/file_order.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "common/source/piece.h"

namespace ckptd {
namespace {

// Bytes of a tensor in a file.
struct Extent {
  uint32_t file = 0;
  size_t position = 0;  // of its tensor, in the order
  uint64_t begin = 0;
  uint64_t end = 0;
};

using Sources = std::vector<std::pair<FilePlace, const TensorEntry*>>;

void SortByPlace(Sources& sources) {
  const auto before = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (!std::is_sorted(sources.begin(), sources.end(), before)) {
    std::sort(sources.begin(), sources.end(), before);
  }
}

// Every source tensor of the cohorts once, by place.
Sources SourcesOf(const CheckpointIndex& index, std::span<const CohortPlan* const> cohorts) {
  std::vector<bool> seen(index.tensors.size());
  Sources sources;
  for (const CohortPlan* cohort : cohorts) {
    for (const CohortPlan::Item& item : cohort->items()) {
      const auto at = static_cast<size_t>(item.source - index.tensors.data());
      if (!seen[at]) sources.emplace_back(item.place, item.source);
      seen[at] = true;
    }
  }
  SortByPlace(sources);
  return sources;
}

// Forbids the cuts of one file: `extents` are all of it, by position.
void ForbidCuts(const Extent* first, const Extent* last, std::vector<int64_t>& forbids) {
  std::vector<uint64_t> begins;  // the least from each extent on
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (const Extent* at = last; at-- != first;) {
    least = std::min(least, at->begin);
    begins.push_back(least);
  }
  std::reverse(begins.begin(), begins.end());
  uint64_t reached = 0;
  for (const Extent* at = first; at + 1 < last; ++at) {
    reached = std::max(reached, at->end);
    if (at[1].position == at->position || reached <= begins[static_cast<size_t>(at + 1 - first)]) {
      continue;
    }
    ++forbids[at->position + 1];
    --forbids[at[1].position + 1];
  }
}

std::vector<PlaceInOrder> OrderOf(const Sources& sources) {
  std::vector<PlaceInOrder> order;
  std::vector<Extent> extents;
  for (const auto& [place, tensor] : sources) {
    if (order.empty() || order.back().place != place) order.push_back({place});
    ++order.back().tensors;
    for (const Piece& piece : tensor->pieces) {
      if (piece.bytes == 0) continue;
      order.back().bytes += piece.bytes;
      extents.push_back({piece.file, order.size() - 1, piece.offset,
                         piece.offset + SpanOf(piece, tensor->dtype)});
    }
  }
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.file, a.position) < std::tie(b.file, b.position);
  });
  std::vector<int64_t> forbids(order.size() + 1);
  for (const Extent* at = extents.data(); at != extents.data() + extents.size();) {
    const Extent* const begin = at;
    while (at != extents.data() + extents.size() && at->file == begin->file) ++at;
    ForbidCuts(begin, at, forbids);
  }
  int64_t forbidden = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    forbidden += forbids[i];
    order[i].can_cut = forbidden == 0;
  }
  return order;
}

}  // namespace

std::vector<PlaceInOrder> OrderInFiles(const CheckpointIndex& index,
                                       std::span<const CohortPlan* const> cohorts) {
  return OrderOf(SourcesOf(index, cohorts));
}

std::vector<PlaceInOrder> OrderInFiles(const CheckpointIndex& index) {
  Sources sources;
  for (const TensorEntry& tensor : index.tensors) sources.emplace_back(PlaceOf(tensor), &tensor);
  SortByPlace(sources);
  return OrderOf(sources);
}

ItemSpan ItemCursor::UpTo(const FilePlace& place) {
  const size_t first = next_;
  while (next_ < items_->size() && (*items_)[next_].place < place) ++next_;
  return {first, next_};
}

}  // namespace ckptd
