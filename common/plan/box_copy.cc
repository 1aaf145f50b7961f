#include "common/plan/box_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "absl/container/inlined_vector.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// A loop around a run, in elements.
struct Loop {
  uint64_t count = 0;
  uint64_t source_stride = 0;
  uint64_t local_stride = 0;
};

using Loops = absl::InlinedVector<Loop, CopyOp::kMaxDims>;

// Everything in elements, loops innermost first.
struct Walk {
  uint64_t source_offset = 0;
  uint64_t local_offset = 0;
  uint64_t run = 1;
  Loops loops;
  Loops repeats;  // those that come back to bytes that were passed
};

void AddDimension(uint64_t count, uint64_t source_stride, uint64_t local_stride, Walk& walk) {
  if (walk.loops.empty() && source_stride == walk.run && local_stride == walk.run) {
    walk.run *= count;
    return;
  }
  if (!walk.loops.empty()) {
    Loop& inner = walk.loops.back();
    if (source_stride == inner.count * inner.source_stride &&
        local_stride == inner.count * inner.local_stride) {
      inner.count *= count;
      return;
    }
  }
  walk.loops.push_back({count, source_stride, local_stride});
}

Walk WalkOf(const Box& shared, const Piece& piece, const PlacedBox& placed,
            const Shape& local_shape) {
  Walk walk;
  Loops dims;  // innermost first
  uint64_t source_stride = 1;
  uint64_t local_stride = 1;
  for (size_t dim = shared.offsets.size(); dim-- > 0;) {
    if (!piece.strides.empty()) source_stride = piece.strides[dim];
    walk.source_offset += (shared.offsets[dim] - piece.box.offsets[dim]) * source_stride;
    walk.local_offset +=
        (placed.local[dim] + (shared.offsets[dim] - placed.global.offsets[dim])) * local_stride;
    dims.push_back({shared.extents[dim], source_stride, local_stride});
    if (piece.strides.empty()) source_stride *= piece.box.extents[dim];
    local_stride *= local_shape[dim];
  }
  if (!piece.strides.empty()) {
    std::stable_sort(dims.begin(), dims.end(), [](const Loop& a, const Loop& b) {
      return a.source_stride < b.source_stride;
    });
  }
  uint64_t span = 1;  // elements of the file that the loops so far reach over
  for (const Loop& dim : dims) {
    if (dim.count == 1) continue;
    if (dim.source_stride < span) {
      walk.repeats.push_back(dim);
      continue;
    }
    span += (dim.count - 1) * dim.source_stride;
    AddDimension(dim.count, dim.source_stride, dim.local_stride, walk);
  }
  return walk;
}

absl::Status Mismatch(const std::string& sentence) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutMismatch, sentence);
}

bool EndsOnBytes(const Walk& walk, uint32_t bits) {
  const auto whole = [bits](uint64_t elements) { return elements % 8 * bits % 8 == 0; };
  bool all = whole(walk.run) && whole(walk.source_offset) && whole(walk.local_offset);
  for (const Loop& loop : walk.loops) {
    all = all && whole(loop.source_stride) && whole(loop.local_stride);
  }
  // A piece with strides has elements of whole bytes, and only such a piece has repeats.
  return all;
}

}  // namespace

std::optional<Box> Intersection(const Box& a, const Box& b) {
  Box shared;
  shared.offsets.resize(a.offsets.size());
  shared.extents.resize(a.offsets.size());
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    const uint64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const uint64_t end =
        std::min(a.offsets[dim] + a.extents[dim], b.offsets[dim] + b.extents[dim]);
    if (begin >= end) return std::nullopt;
    shared.offsets[dim] = begin;
    shared.extents[dim] = end - begin;
  }
  return shared;
}

absl::StatusOr<BoxCopies> CopiesOfBox(const Box& shared, const Piece& piece,
                                      const PlacedBox& placed, const Shape& local_shape,
                                      Dtype from, Dtype to) {
  const Walk walk = WalkOf(shared, piece, placed, local_shape);
  if (walk.loops.size() > CopyOp::kMaxDims) {
    return Mismatch(fmt::format(
        "its slice needs {} nested strides; at most {} are supported: shard fewer dimensions",
        walk.loops.size(), CopyOp::kMaxDims));
  }
  const uint32_t bits = BitsOf(from);
  if (bits % 8 != 0 && !EndsOnBytes(walk, bits)) {
    return Mismatch(fmt::format(
        "its slice would begin or end inside a byte of {}; shard another dimension or so that "
        "each part is a whole number of bytes",
        NameOf(from)));
  }
  // Whole bytes either way: multiples of eight elements, or of whole-byte types.
  const auto in_file = [bits](uint64_t n) { return n / 8 * bits + n % 8 * bits / 8; };
  const auto in_slab = [bits = BitsOf(to)](uint64_t n) { return n / 8 * bits + n % 8 * bits / 8; };
  BoxCopies copies;
  CopyOp& op = copies.first;
  op.file = piece.file;
  op.from = from;
  op.to = to;
  op.file_offset = piece.offset + in_file(walk.source_offset);
  op.slab_offset = in_slab(walk.local_offset);
  op.run_bytes = in_file(walk.run);
  op.dims = static_cast<uint32_t>(walk.loops.size());
  for (size_t i = 0; i < walk.loops.size(); ++i) {
    const Loop& loop = walk.loops[walk.loops.size() - 1 - i];
    op.count[i] = loop.count;
    op.file_stride[i] = in_file(loop.source_stride);
    op.slab_stride[i] = in_slab(loop.local_stride);
  }
  for (const Loop& loop : walk.repeats) {
    copies.repeats.push_back({loop.count, in_file(loop.source_stride), in_slab(loop.local_stride)});
  }
  return copies;
}

}  // namespace ckptd
