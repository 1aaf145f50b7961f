#include "common/source/intervals.h"

#include <algorithm>

#include "common/base/checked_math.h"

namespace ckptd {
namespace {

// Positions [begin, end) of chunk `index`. Does not overflow.
Interval ChunkBounds(uint64_t count, uint64_t parts, uint64_t index) {
  const uint64_t chunk = CeilDivide(count, parts);
  if (chunk == 0 || index > count / chunk) return {count, count};
  const uint64_t begin = index * chunk;
  return {begin, begin + std::min(chunk, count - begin)};
}

// Appends the indices at positions [from, to) of `intervals`.
void AppendSlice(const Intervals& intervals, uint64_t from, uint64_t to, Intervals& out) {
  uint64_t position = 0;
  for (const Interval& run : intervals) {
    if (position >= to) return;
    const uint64_t length = run.end - run.begin;
    const uint64_t low = std::max(from, position);
    const uint64_t high = std::min(to, position + length);
    if (low < high) {
      const Interval part{run.begin + (low - position), run.begin + (high - position)};
      if (!out.empty() && out.back().end == part.begin) {
        out.back().end = part.end;
      } else {
        out.push_back(part);
      }
    }
    position += length;
  }
}

}  // namespace

uint64_t CountOf(const Intervals& intervals) {
  uint64_t count = 0;
  for (const Interval& run : intervals) count += run.end - run.begin;
  return count;
}

Intervals ChunkOf(const Intervals& intervals, uint64_t parts, uint64_t index) {
  const Interval bounds = ChunkBounds(CountOf(intervals), parts, index);
  Intervals out;
  AppendSlice(intervals, bounds.begin, bounds.end, out);
  return out;
}

std::optional<Intervals> StridedChunkOf(const Intervals& intervals, uint64_t split_factor,
                                        uint64_t parts, uint64_t index) {
  const uint64_t count = CountOf(intervals);
  Intervals out;
  if (count == 0) return out;
  // Cuts after the last index are empty, so only these are made.
  const uint64_t cuts = CeilDivide(count, CeilDivide(count, split_factor));
  if (cuts > kMaxIntervals) return std::nullopt;
  for (uint64_t cut = 0; cut < cuts; ++cut) {
    const Interval outer = ChunkBounds(count, split_factor, cut);
    const Interval inner = ChunkBounds(outer.end - outer.begin, parts, index);
    AppendSlice(intervals, outer.begin + inner.begin, outer.begin + inner.end, out);
  }
  if (out.size() > kMaxIntervals) return std::nullopt;
  return out;
}

}  // namespace ckptd
