#include "common/source/boxes.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace ckptd {
namespace {

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

}  // namespace

std::vector<Box> BoxesOfRange(const Shape& shape, uint64_t begin, uint64_t end) {
  std::vector<Box> boxes;
  Shape inner(shape.size(), 1);  // elements of one step along each dimension
  for (size_t dim = shape.size(); dim-- > 1;) inner[dim - 1] = inner[dim] * shape[dim];
  while (begin < end) {
    Box& box = boxes.emplace_back();
    uint64_t rest = begin;
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      box.offsets.push_back(rest / inner[dim]);
      rest %= inner[dim];
    }
    // Along the outermost dimension of which whole steps begin here and fit.
    size_t dim = 0;
    while (dim < shape.size() && (begin % inner[dim] != 0 || inner[dim] > end - begin)) ++dim;
    box.extents.assign(shape.size(), 1);
    uint64_t taken = 1;
    if (dim < shape.size()) {
      box.extents[dim] = std::min((end - begin) / inner[dim], shape[dim] - box.offsets[dim]);
      std::copy(shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1, shape.end(),
                box.extents.begin() + static_cast<std::ptrdiff_t>(dim) + 1);
      taken = box.extents[dim] * inner[dim];
    }
    begin += taken;
  }
  return boxes;
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
