#include "common/plan/scatter_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/checked_math.h"
#include "common/plan/file_order.h"
#include "common/plan/plan_digest.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

// No element is longer, and all lengths divide it.
constexpr uint64_t kElementGrid = 16;

// Bytes of a piece.
struct Extent {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool strided = false;
  bool operator<(const Extent& other) const { return begin < other.begin; }
};
using ExtentsPerFile = std::map<uint32_t, std::vector<Extent>>;

// Where [begin, end) may be cut next, at most `most` bytes from `begin`. Pieces are
// sorted; where they overlap their elements may begin anywhere, and nothing is cut.
uint64_t CutBefore(const std::vector<Extent>& pieces, uint64_t begin, uint64_t most,
                   uint64_t end) {
  if (end - begin <= most) return end;
  const uint64_t wanted = begin + most;
  const auto after = std::upper_bound(pieces.begin(), pieces.end(), Extent{wanted, 0, false});
  if (after == pieces.begin()) return wanted;
  const Extent& piece = *std::prev(after);
  if (wanted >= piece.end) return wanted;  // between two of them
  return wanted - (wanted - piece.begin) % kElementGrid;
}

// Whether these bytes come in one step, however many they are: where pieces overlap, and where
// strides would deal a part of the bytes out over all of the tensor, element by element.
bool StayWhole(const std::vector<Extent>& sorted) {
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (sorted[i].strided || (i > 0 && sorted[i].begin < sorted[i - 1].end)) return true;
  }
  return false;
}

// The steps of one window.
void AddSteps(size_t window, ExtentsPerFile& extents, const ScatterSize& size,
              std::vector<ScatterStep>& steps) {
  for (auto& [file, pieces] : extents) {
    std::sort(pieces.begin(), pieces.end());
    uint64_t end = 0;
    for (const Extent& piece : pieces) end = std::max(end, piece.end);
    const bool whole = StayWhole(pieces);
    const uint64_t most = std::max(size.step_bytes, kElementGrid);
    // As few as do, and all alike: a short one between long ones is sent before the next one
    // has been read.
    uint64_t left = whole ? 1 : CeilDivide(end - pieces.front().begin, most);
    for (uint64_t at = pieces.front().begin; at < end;) {
      const uint64_t each = std::max(CeilDivide(end - at, left), kElementGrid);
      const uint64_t next = left == 1 ? end : CutBefore(pieces, at, each, end);
      steps.push_back({window, file, at, next});
      at = next;
      --left;
    }
  }
  extents.clear();
}

uint64_t DigestOf(const ScatterOrder& order) {
  CanonicalHasher out;
  out.Number(order.windows.size());
  for (const FilePlace& place : order.windows) {
    out.Number(place.file);
    out.Number(place.offset);
  }
  for (const ScatterStep& step : order.steps) {
    out.Number(step.window);
    out.Number(step.file);
    out.Number(step.begin);
    out.Number(step.end);
  }
  return out.Digest();
}

}  // namespace

ScatterSize ScatterSizeFor(size_t world_size) {
  constexpr size_t kMostPlanned = size_t{1} << 17;
  constexpr size_t kLeast = 16;
  ScatterSize size;
  size.step_tensors =
      std::clamp(kMostPlanned / std::max<size_t>(world_size, 1), kLeast, size.step_tensors);
  return size;
}

ScatterOrder OrderScatter(const CheckpointIndex& index, const ScatterSize& size) {
  ScatterOrder order;
  const std::vector<PlaceInOrder> places = OrderInFiles(index);
  std::vector<std::pair<FilePlace, const TensorEntry*>> tensors;
  for (const TensorEntry& tensor : index.tensors) tensors.emplace_back(PlaceOf(tensor), &tensor);
  std::sort(tensors.begin(), tensors.end());
  ExtentsPerFile extents;  // of the open window
  uint64_t bytes = 0;
  size_t count = 0;
  auto next = tensors.begin();
  for (const PlaceInOrder& place : places) {
    const bool full = bytes >= size.step_bytes || count >= size.step_tensors;
    if (order.windows.empty() || (place.can_cut && full)) {
      if (!order.windows.empty()) AddSteps(order.windows.size() - 1, extents, size, order.steps);
      order.windows.push_back(place.place);
      bytes = 0;
      count = 0;
    }
    bytes += place.bytes;
    count += place.tensors;
    for (; next != tensors.end() && next->first == place.place; ++next) {
      for (const Piece& piece : next->second->pieces) {
        if (piece.bytes == 0) continue;
        extents[piece.file].push_back(
            {piece.offset, piece.offset + SpanOf(piece, next->second->dtype),
             !piece.strides.empty()});
      }
    }
  }
  if (!order.windows.empty()) AddSteps(order.windows.size() - 1, extents, size, order.steps);
  order.digest = DigestOf(order);
  return order;
}

}  // namespace ckptd
