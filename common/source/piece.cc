#include "common/source/piece.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/checked_math.h"

namespace ckptd {
namespace {

// Elements from the first to behind the last; nullopt when they do not fit 64 bits. No extent is 0.
std::optional<uint64_t> ElementSpan(const Shape& extents, const Shape& strides) {
  uint64_t span = 1;
  for (size_t dim = 0; dim < extents.size(); ++dim) {
    const auto steps = CheckedMultiply(extents[dim] - 1, strides[dim]);
    const auto sum = steps.has_value() ? CheckedAdd(span, *steps) : std::nullopt;
    if (!sum.has_value()) return std::nullopt;
    span = *sum;
  }
  return span;
}

bool LiesInTensor(const Box& box, const Shape& shape) {
  if (box.offsets.size() != shape.size() || box.extents.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.offsets[dim] > shape[dim] || box.extents[dim] > shape[dim] - box.offsets[dim]) {
      return false;
    }
  }
  return true;
}

}  // namespace

Shape CompactStrides(const Shape& extents, Shape strides) {
  if (strides.size() != extents.size()) return strides;
  if (std::find(extents.begin(), extents.end(), 0) != extents.end()) return {};
  std::optional<uint64_t> expected = 1;
  for (size_t dim = extents.size(); dim-- > 0;) {
    if (extents[dim] != 1 && expected != strides[dim]) return strides;
    if (expected.has_value()) expected = CheckedMultiply(*expected, extents[dim]);
  }
  return {};
}

Shape StridesOf(const Piece& piece) {
  if (!piece.strides.empty()) return piece.strides;
  Shape strides(piece.box.extents.size());
  uint64_t stride = 1;
  for (size_t dim = strides.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= piece.box.extents[dim];
  }
  return strides;
}

std::string_view WhyImpossible(const Piece& piece, const TensorEntry& tensor, uint64_t file_bytes) {
  const Box& box = piece.box;
  const uint32_t bits = BitsOf(tensor.dtype);
  if (!LiesInTensor(box, tensor.shape)) return "its box leaves the tensor";
  const auto elements = CheckedElements(box.extents);
  const auto bytes = elements.has_value() ? CheckedBytes(*elements, bits) : std::nullopt;
  if (bytes != piece.bytes) return "its box has another number of bytes";
  if (piece.offset > file_bytes) return "it begins behind the end of its file";
  uint64_t span = piece.bytes;
  if (!piece.strides.empty()) {
    if (piece.strides.size() != tensor.shape.size()) return "it needs one stride per dimension";
    if (bits % 8 != 0) return "elements of less than a byte have no strides";
    const auto count = *elements == 0 ? std::optional<uint64_t>(0)
                                      : ElementSpan(box.extents, piece.strides);
    const auto reach = count.has_value() ? CheckedBytes(*count, bits) : std::nullopt;
    if (!reach.has_value()) return "its strides pass 64 bits";
    span = *reach;
  }
  return span <= file_bytes - piece.offset ? "" : "it ends behind the end of its file";
}

uint64_t SpanOf(const Piece& piece, Dtype dtype) {
  if (piece.strides.empty() || piece.bytes == 0) return piece.bytes;
  return ElementSpan(piece.box.extents, piece.strides).value_or(0) * (BitsOf(dtype) / 8);
}

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

PieceRuns::PieceRuns(const Piece& piece, Dtype dtype)
    : done_(piece.bytes == 0), offset_(piece.offset), bytes_(piece.bytes) {
  if (piece.strides.empty() || done_) return;
  const uint64_t element = BitsOf(dtype) / 8;
  bytes_ = element;
  std::vector<std::pair<uint64_t, uint64_t>> dims;  // stride and extent
  for (size_t dim = 0; dim < piece.strides.size(); ++dim) {
    if (piece.box.extents[dim] > 1 && piece.strides[dim] > 0) {
      dims.emplace_back(piece.strides[dim] * element, piece.box.extents[dim]);
    }
  }
  std::sort(dims.begin(), dims.end());
  for (const auto& [stride, count] : dims) {
    if (loops_.empty() && stride == bytes_) {
      bytes_ *= count;
    } else {
      loops_.push_back({count, stride, 0});
    }
  }
}

void PieceRuns::Next() {
  for (Loop& loop : loops_) {
    offset_ += loop.stride;
    if (++loop.at < loop.count) return;
    offset_ -= loop.stride * loop.count;
    loop.at = 0;
  }
  done_ = true;
}

}  // namespace ckptd
