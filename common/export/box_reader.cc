#include "common/export/box_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/source/piece.h"

namespace ckptd {
namespace {

// A gap of this length costs more to read than another call does. A run of this length is worth one.
constexpr uint64_t kLongGap = 64 << 10;
constexpr uint64_t kLongRun = 64 << 10;
// A tile of this many rows and columns lies in the first cache while it is copied.
constexpr uint64_t kTile = 64;

std::optional<Box> Shared(const Box& a, const Box& b) {
  Box out;
  for (size_t dim = 0; dim < a.offsets.size(); ++dim) {
    const uint64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    const uint64_t end =
        std::min(a.offsets[dim] + a.extents[dim], b.offsets[dim] + b.extents[dim]);
    if (begin >= end) return std::nullopt;
    out.offsets.push_back(begin);
    out.extents.push_back(end - begin);
  }
  return out;
}

Shape COrder(const Shape& extents) {
  Shape strides(extents.size());
  uint64_t stride = 1;
  for (size_t dim = extents.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= extents[dim];
  }
  return strides;
}

// One unit is mostly one element, whose size the compiler knows then.
template <size_t kUnit>
void CopyTile(const std::byte* from, std::byte* to, uint64_t rows, uint64_t row_from,
              uint64_t row_to, uint64_t count, uint64_t step_from, uint64_t step_to) {
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t i = 0; i < count; ++i) {
      std::memcpy(to + row * row_to + i * step_to, from + row * row_from + i * step_from, kUnit);
    }
  }
}

void CopyTileOf(size_t unit, const std::byte* from, std::byte* to, uint64_t rows,
                uint64_t row_from, uint64_t row_to, uint64_t count, uint64_t step_from,
                uint64_t step_to) {
  switch (unit) {
    case 1: return CopyTile<1>(from, to, rows, row_from, row_to, count, step_from, step_to);
    case 2: return CopyTile<2>(from, to, rows, row_from, row_to, count, step_from, step_to);
    case 4: return CopyTile<4>(from, to, rows, row_from, row_to, count, step_from, step_to);
    case 8: return CopyTile<8>(from, to, rows, row_from, row_to, count, step_from, step_to);
    case 16: return CopyTile<16>(from, to, rows, row_from, row_to, count, step_from, step_to);
    default:
      for (uint64_t row = 0; row < rows; ++row) {
        for (uint64_t i = 0; i < count; ++i) {
          std::memcpy(to + row * row_to + i * step_to, from + row * row_from + i * step_from, unit);
        }
      }
  }
}

}  // namespace

BoxReader::Loops BoxReader::LoopsOf(const Piece& piece, size_t element, const Box& shared,
                                    const Box& block) {
  const Shape from = StridesOf(piece);
  const Shape to = COrder(block.extents);
  Loops loops;
  for (size_t dim = 0; dim < from.size(); ++dim) {
    if (shared.extents[dim] == 1) continue;
    loops.push_back({shared.extents[dim], from[dim] * element, to[dim] * element});
  }
  std::stable_sort(loops.begin(), loops.end(),
                   [](const Loop& a, const Loop& b) { return a.from > b.from; });
  // A loop that goes on where the next one ends is one with it.
  Loops merged;
  for (const Loop& loop : loops) {
    if (!merged.empty() && merged.back().from == loop.from * loop.count &&
        merged.back().to == loop.to * loop.count) {
      merged.back() = {merged.back().count * loop.count, loop.from, loop.to};
    } else {
      merged.push_back(loop);
    }
  }
  return merged;
}

uint64_t BoxReader::SpanOf(const Loops& loops, size_t unit) {
  uint64_t span = unit;
  for (const Loop& loop : loops) span += (loop.count - 1) * loop.from;
  return span;
}

absl::Status BoxReader::Read(const ReadableObject& object, const Piece& piece, size_t element,
                             const Box& block, std::span<std::byte> out) {
  const std::optional<Box> shared = Shared(piece.box, block);
  if (!shared.has_value()) return absl::OkStatus();
  const Shape from = StridesOf(piece);
  const Shape to = COrder(block.extents);
  uint64_t source = 0;
  uint64_t target = 0;
  for (size_t dim = 0; dim < from.size(); ++dim) {
    source += (shared->offsets[dim] - piece.box.offsets[dim]) * from[dim];
    target += (shared->offsets[dim] - block.offsets[dim]) * to[dim];
  }
  Loops loops = LoopsOf(piece, element, *shared, block);
  size_t unit = element;
  if (!loops.empty() && loops.back().from == element && loops.back().to == element) {
    unit = static_cast<size_t>(loops.back().count) * element;  // a run
    loops.pop_back();
  }
  return ReadLoops(object, piece.offset + source * element, std::move(loops), unit,
                   out.data() + target * element);
}

// Reads along what lies between, in parts that fit the scratch memory, unless gaps are long.
absl::Status BoxReader::ReadLoops(const ReadableObject& object, uint64_t offset, Loops loops,
                                  size_t unit, std::byte* out) {
  if (loops.empty()) return object.ReadAt(offset, {out, unit});
  const Loop first = loops.front();
  const uint64_t inner = SpanOf({loops.begin() + 1, loops.end()}, unit);
  const bool far = first.from >= inner + kLongGap;
  if (unit >= kLongRun || far || inner > scratch_bytes_) {
    loops.erase(loops.begin());
    for (uint64_t i = 0; i < first.count; ++i) {
      CKPTD_RETURN_IF_ERROR(
          ReadLoops(object, offset + i * first.from, loops, unit, out + i * first.to));
    }
    return absl::OkStatus();
  }
  const uint64_t most =
      first.from == 0 ? first.count : 1 + (scratch_bytes_ - inner) / first.from;
  for (uint64_t i = 0; i < first.count; i += most) {
    loops.front().count = std::min(most, first.count - i);
    CKPTD_RETURN_IF_ERROR(
        ReadEach(object, offset + i * first.from, loops, unit, out + i * first.to));
  }
  return absl::OkStatus();
}

// All of it fits the scratch memory.
absl::Status BoxReader::ReadEach(const ReadableObject& object, uint64_t offset, const Loops& loops,
                                 size_t unit, std::byte* out) {
  scratch_.resize(scratch_bytes_);
  const std::span<std::byte> read(scratch_.data(), static_cast<size_t>(SpanOf(loops, unit)));
  CKPTD_RETURN_IF_ERROR(object.ReadAt(offset, read));
  // The two loops with the smallest steps make tiles, the others go round them.
  const size_t outer = loops.size() > 2 ? loops.size() - 2 : 0;
  const Loop rows = loops.size() > 1 ? loops[outer] : Loop{1, 0, 0};
  const Loop steps = loops.back();
  std::vector<uint64_t> at(outer, 0);
  for (;;) {
    uint64_t from = 0;
    uint64_t to = 0;
    for (size_t i = 0; i < outer; ++i) {
      from += at[i] * loops[i].from;
      to += at[i] * loops[i].to;
    }
    for (uint64_t row = 0; row < rows.count; row += kTile) {
      for (uint64_t step = 0; step < steps.count; step += kTile) {
        CopyTileOf(unit, read.data() + from + row * rows.from + step * steps.from,
                   out + to + row * rows.to + step * steps.to,
                   std::min(kTile, rows.count - row), rows.from, rows.to,
                   std::min(kTile, steps.count - step), steps.from, steps.to);
      }
    }
    size_t dim = outer;
    while (dim-- > 0 && ++at[dim] == loops[dim].count) at[dim] = 0;
    if (dim == SIZE_MAX) return absl::OkStatus();
  }
}

}  // namespace ckptd
