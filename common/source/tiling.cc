#include "common/source/tiling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"

namespace ckptd {
namespace {

using Boxes = std::vector<const Box*>;

// Boxes on a grid have one cell each. So many more are tried before boxes are compared in pairs.
constexpr uint64_t kCellsPerBox = 4;
constexpr uint64_t kFreeCells = 4096;
// Far more than anybody saves beside a grid: pairs of boxes, times their dimensions.
constexpr size_t kMostCompared = size_t{8192} * 8192 * 2;

std::string Described(const Box& box) {
  return fmt::format("({}) at ({})", fmt::join(box.extents, ", "), fmt::join(box.offsets, ", "));
}

std::string Overlap(const Box& a, const Box& b) {
  return fmt::format("the chunk of {} overlaps the one of {}", Described(a), Described(b));
}

bool IsInside(const Box& box, const Shape& shape) {
  if (box.offsets.size() != shape.size() || box.extents.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offsets[dim] > shape[dim] || box.extents[dim] > shape[dim] - box.offsets[dim]) {
      return false;
    }
  }
  return true;
}

bool DoOverlap(const Box& a, const Box& b) {
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    if (a.offsets[dim] >= b.offsets[dim] + b.extents[dim]) return false;
    if (b.offsets[dim] >= a.offsets[dim] + a.extents[dim]) return false;
  }
  return true;
}

// All planes along which the boxes cut the tensor, and the cells between them.
class Grid {
 public:
  Grid(size_t dims, const Boxes& boxes) : cuts_(dims) {
    for (size_t dim = 0; dim < dims; ++dim) {
      std::vector<uint64_t>& cuts = cuts_[dim];
      for (const Box* const box : boxes) {
        cuts.push_back(box->offsets[dim]);
        cuts.push_back(box->offsets[dim] + box->extents[dim]);
      }
      std::sort(cuts.begin(), cuts.end());
      cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
      if (cells_.has_value()) cells_ = CheckedMultiply(*cells_, cuts.size() - 1);
    }
  }

  std::optional<uint64_t> cells() const { return cells_; }

  // Two boxes that share a cell; nulls: none do.
  std::pair<const Box*, const Box*> FindOverlap(const Boxes& boxes) const {
    std::vector<const Box*> owners(*cells_);
    for (const Box* const box : boxes) {
      if (const Box* const other = Take(*box, owners); other != nullptr) return {other, box};
    }
    return {nullptr, nullptr};
  }

 private:
  uint64_t CellOf(size_t dim, uint64_t at) const {
    const std::vector<uint64_t>& cuts = cuts_[dim];
    return static_cast<uint64_t>(std::lower_bound(cuts.begin(), cuts.end(), at) - cuts.begin());
  }

  // Makes the box the owner of its cells, until one has an owner, which is returned.
  const Box* Take(const Box& box, std::vector<const Box*>& owners) const {
    const size_t dims = cuts_.size();
    Shape first(dims);
    Shape end(dims);
    for (size_t dim = 0; dim < dims; ++dim) {
      first[dim] = CellOf(dim, box.offsets[dim]);
      end[dim] = CellOf(dim, box.offsets[dim] + box.extents[dim]);
    }
    Shape at = first;
    for (;;) {
      uint64_t cell = 0;
      for (size_t dim = 0; dim < dims; ++dim) cell = cell * (cuts_[dim].size() - 1) + at[dim];
      if (owners[cell] != nullptr) return owners[cell];
      owners[cell] = &box;
      size_t dim = dims;
      while (dim > 0 && ++at[dim - 1] == end[dim - 1]) {
        --dim;
        at[dim] = first[dim];
      }
      if (dim == 0) return nullptr;
    }
  }

  std::vector<std::vector<uint64_t>> cuts_;
  std::optional<uint64_t> cells_ = 1;
};

std::string FindOverlap(size_t dims, const Boxes& boxes) {
  const Grid grid(dims, boxes);
  if (grid.cells().value_or(UINT64_MAX) <= kCellsPerBox * boxes.size() + kFreeCells) {
    const auto [a, b] = grid.FindOverlap(boxes);
    return a == nullptr ? "" : Overlap(*a, *b);
  }
  if (boxes.size() > kMostCompared / boxes.size() / dims) {
    return fmt::format("its {} chunks lie on no grid, and are too many to be compared",
                       boxes.size());
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (DoOverlap(*boxes[i], *boxes[j])) return Overlap(*boxes[j], *boxes[i]);
    }
  }
  return "";
}

}  // namespace

std::string WhyNoTiling(const Shape& shape, std::span<const Box> boxes) {
  const auto elements = CheckedElements(shape);
  if (!elements.has_value()) return "its shape is larger than any memory";
  Boxes filled;
  // Wraps only where boxes overlap, which is found then.
  uint64_t covered = 0;
  for (const Box& box : boxes) {
    const uint64_t count = CheckedElements(box.extents).value_or(UINT64_MAX);
    if (count == 0) continue;
    if (!IsInside(box, shape)) {
      return fmt::format("the chunk of {} leaves its shape ({})", Described(box),
                         fmt::join(shape, ", "));
    }
    covered += count;
    filled.push_back(&box);
  }
  if (filled.size() > 1) {
    if (std::string overlap = FindOverlap(shape.size(), filled); !overlap.empty()) return overlap;
  }
  if (covered == *elements) return "";
  return fmt::format("{} of its {} elements are in no chunk", *elements - covered, *elements);
}

}  // namespace ckptd
