// Indices along one tensor dimension, as runs instead of single numbers: the part that a chain of
// Shard and _StridedShard placements gives one rank.
#ifndef CKPTD_COMMON_SOURCE_INTERVALS_H_
#define CKPTD_COMMON_SOURCE_INTERVALS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace ckptd {

// Indices [begin, end). Never empty in an Intervals.
struct Interval {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const Interval&) const = default;
};

// Ascending and disjoint. Neighbours are merged.
using Intervals = std::vector<Interval>;

// A chain that scatters a dimension into more runs is refused. No training layout comes near, and
// single rows would be slow to copy.
inline constexpr uint64_t kMaxIntervals = 1024;

// How many indices there are.
uint64_t CountOf(const Intervals& intervals);

// Part `index` of `parts` ceil-chunks (torch.chunk, with empty chunks at the end). parts > 0,
// index < parts.
Intervals ChunkOf(const Intervals& intervals, uint64_t parts, uint64_t index);

// _StridedShard: cuts the intervals into `split_factor` ceil-chunks, and each of them into
// `parts`. Joins part `index` of each. Nullopt if that needs more than kMaxIntervals cuts.
// split_factor > 0.
std::optional<Intervals> StridedChunkOf(const Intervals& intervals, uint64_t split_factor,
                                        uint64_t parts, uint64_t index);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_INTERVALS_H_
