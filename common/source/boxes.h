// The arithmetic of boxes of a tensor. Pure; thread-safe.
#ifndef CKPTD_COMMON_SOURCE_BOXES_H_
#define CKPTD_COMMON_SOURCE_BOXES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/source/index.h"

namespace ckptd {

// Elements [begin, end) in row-major order as boxes of a tensor, in that order. At most
// two per dimension; end <= product(shape).
std::vector<Box> BoxesOfRange(const Shape& shape, uint64_t begin, uint64_t end);

// Index of a box that overlaps another one. Nullopt if all are disjoint. Boxes must have the same
// number of dimensions, no extent 0 and no end that overflows.
std::optional<size_t> FindOverlap(const std::vector<Box>& boxes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_BOXES_H_
