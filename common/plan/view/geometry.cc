#include "common/plan/view/geometry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "common/base/checked_math.h"
#include "common/source/piece.h"

namespace ckptd::view {
namespace {

std::string WhyNoAxis(const TensorEntry& tensor, size_t axis) {
  if (axis < tensor.shape.size()) return "";
  return fmt::format("it has {} dimensions, and no axis {}", tensor.shape.size(), axis);
}

// Gives the piece its strides and its number of bytes. The strides are those of its elements in the
// file; sub-byte elements have none of their own.
std::string Restride(Piece& piece, Shape strides, uint32_t bits) {
  const uint64_t elements = ElementCount(piece.box.extents);
  if (elements * bits % 8 != 0) return "a part of it would end within a byte";
  piece.bytes = elements * bits / 8;
  piece.strides = CompactStrides(piece.box.extents, std::move(strides));
  if (bits % 8 != 0 && !piece.strides.empty()) {
    return "its elements are smaller than a byte, and would no longer lie in their order";
  }
  return "";
}

// Moves the piece's first element by so many elements.
std::string Advance(Piece& piece, uint64_t elements, uint32_t bits) {
  if (elements * bits % 8 != 0) return "a part of it would begin within a byte";
  piece.offset += elements * bits / 8;
  return "";
}

// A tensor without elements has one piece all the same.
void KeepOnePiece(TensorEntry& tensor, const Piece& before) {
  if (!tensor.pieces.empty()) return;
  Piece piece;
  piece.file = before.file;
  piece.offset = before.offset;
  piece.box = {Shape(tensor.shape.size()), tensor.shape};
  tensor.pieces.push_back(std::move(piece));
}

// Keeps the elements first, first + step ... of [0, size) of `axis`, `count` of them.
std::string Keep(TensorEntry& tensor, size_t axis, uint64_t first, uint64_t step, uint64_t count) {
  const uint32_t bits = BitsOf(tensor.dtype);
  const std::vector<Piece> before = std::exchange(tensor.pieces, {});
  tensor.shape[axis] = count;
  for (const Piece& held : before) {
    const uint64_t begin = held.box.offsets[axis], end = begin + held.box.extents[axis];
    // The numbers among the kept ones of those that lie in this piece.
    const uint64_t from = begin <= first ? 0 : (begin - first + step - 1) / step;
    const uint64_t to = end <= first ? 0 : std::min(count, (end - first + step - 1) / step);
    if (from >= to) continue;
    Piece piece = held;
    Shape strides = StridesOf(held);
    std::string why = Advance(piece, (first + from * step - begin) * strides[axis], bits);
    if (!why.empty()) return why;
    piece.box.offsets[axis] = from;
    piece.box.extents[axis] = to - from;
    strides[axis] *= step;
    why = Restride(piece, std::move(strides), bits);
    if (!why.empty()) return why;
    tensor.pieces.push_back(std::move(piece));
  }
  KeepOnePiece(tensor, before.front());
  return "";
}

std::string WhyNotAlike(const TensorEntry& a, const TensorEntry& b, size_t axis) {
  if (a.dtype != b.dtype) {
    return fmt::format("{} is {}, and {} is {}", a.name, NameOf(a.dtype), b.name, NameOf(b.dtype));
  }
  Shape same = b.shape;
  if (same.size() == a.shape.size()) same[axis] = a.shape[axis];
  if (same != a.shape) {
    return fmt::format("{} has shape [{}], and {} has [{}]", a.name, fmt::join(a.shape, ", "),
                       b.name, fmt::join(b.shape, ", "));
  }
  if (a.big_endian != b.big_endian) {
    return fmt::format("{} and {} have their bytes in different orders", a.name, b.name);
  }
  if (a.negates_real != b.negates_real || a.negates_imaginary != b.negates_imaginary) {
    return fmt::format("one of {} and {} is saved with its signs turned over", a.name, b.name);
  }
  return "";
}

}  // namespace

std::string Permute(TensorEntry& tensor, std::span<const size_t> axes) {
  if (axes.size() != tensor.shape.size()) {
    return fmt::format("it has {} dimensions, not {}", tensor.shape.size(), axes.size());
  }
  const auto permuted = [axes](const Shape& was) {
    Shape now(axes.size());
    for (size_t i = 0; i < axes.size(); ++i) now[i] = was[axes[i]];
    return now;
  };
  for (Piece& piece : tensor.pieces) {
    const Shape strides = permuted(StridesOf(piece));
    piece.box = {permuted(piece.box.offsets), permuted(piece.box.extents)};
    std::string why = Restride(piece, strides, BitsOf(tensor.dtype));
    if (!why.empty()) return why;
  }
  tensor.shape = permuted(tensor.shape);
  return "";
}

std::string Narrow(TensorEntry& tensor, size_t axis, uint64_t begin, uint64_t end) {
  std::string why = WhyNoAxis(tensor, axis);
  if (!why.empty()) return why;
  if (begin > end || end > tensor.shape[axis]) {
    return fmt::format("its axis {} has {} elements, and no [{}, {})", axis, tensor.shape[axis],
                       begin, end);
  }
  return Keep(tensor, axis, begin, 1, end - begin);
}

std::string TakeEvery(TensorEntry& tensor, size_t axis, uint64_t first, uint64_t step) {
  std::string why = WhyNoAxis(tensor, axis);
  if (!why.empty()) return why;
  const uint64_t size = tensor.shape[axis];
  return Keep(tensor, axis, first, step, first < size ? (size - first + step - 1) / step : 0);
}

std::string AddAxis(TensorEntry& tensor, size_t axis) {
  if (axis > tensor.shape.size()) return WhyNoAxis(tensor, axis);
  const auto at = static_cast<std::ptrdiff_t>(axis);
  tensor.shape.insert(tensor.shape.begin() + at, 1);
  for (Piece& piece : tensor.pieces) {
    piece.box.offsets.insert(piece.box.offsets.begin() + at, 0);
    piece.box.extents.insert(piece.box.extents.begin() + at, 1);
    if (!piece.strides.empty()) piece.strides.insert(piece.strides.begin() + at, 0);
  }
  return "";
}

std::string DropAxis(TensorEntry& tensor, size_t axis) {
  std::string why = WhyNoAxis(tensor, axis);
  if (!why.empty()) return why;
  if (tensor.shape[axis] != 1) {
    return fmt::format("its axis {} has {} elements, not 1", axis, tensor.shape[axis]);
  }
  const auto at = static_cast<std::ptrdiff_t>(axis);
  tensor.shape.erase(tensor.shape.begin() + at);
  for (Piece& piece : tensor.pieces) {
    piece.box.offsets.erase(piece.box.offsets.begin() + at);
    piece.box.extents.erase(piece.box.extents.begin() + at);
    if (!piece.strides.empty()) piece.strides.erase(piece.strides.begin() + at);
  }
  return "";
}

std::string Append(TensorEntry& tensor, const TensorEntry& more, size_t axis) {
  std::string why = WhyNoAxis(tensor, axis);
  if (why.empty()) why = WhyNotAlike(tensor, more, axis);
  if (!why.empty()) return why;
  const uint64_t at = tensor.shape[axis];
  if (!CheckedAdd(at, more.shape[axis]).has_value()) return "its axis would have no end in 64 bits";
  if (ElementCount(tensor.shape) == 0) tensor.pieces.clear();
  tensor.shape[axis] += more.shape[axis];
  if (ElementCount(more.shape) != 0 || tensor.pieces.empty()) {
    for (Piece piece : more.pieces) {
      piece.box.offsets[axis] += at;
      tensor.pieces.push_back(std::move(piece));
    }
  }
  return "";
}

}  // namespace ckptd::view
