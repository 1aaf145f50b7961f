// Indices along one tensor dimension, as runs instead of single numbers: what a
// chain of Shard and _StridedShard placements leaves for one rank.
#ifndef CKPTD_COMMON_LAYOUT_INTERVALS_H_
#define CKPTD_COMMON_LAYOUT_INTERVALS_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace ckptd {

// Indices [begin, end), never empty inside an Intervals.
struct Interval {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool operator==(const Interval&) const = default;
};

// Ascending, disjoint, neighbours merged.
using Intervals = std::vector<Interval>;

// A chain that scatters a dimension into more runs than this is refused: no
// training layout comes near, and copying would degrade to single rows.
inline constexpr uint64_t kMaxIntervals = 1024;

// How many indices there are.
uint64_t CountOf(const Intervals& intervals);

// Part `index` of `parts` ceil-chunks (torch.chunk, with empty chunks at the
// end). parts > 0, index < parts.
Intervals ChunkOf(const Intervals& intervals, uint64_t parts, uint64_t index);

// _StridedShard: the intervals are cut into `split_factor` ceil-chunks, each of
// them into `parts`; the result joins part `index` of each. nullopt when that
// needs more than kMaxIntervals cuts. split_factor > 0.
std::optional<Intervals> StridedChunkOf(const Intervals& intervals, uint64_t split_factor,
                                        uint64_t parts, uint64_t index);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_INTERVALS_H_
