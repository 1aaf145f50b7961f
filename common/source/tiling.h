// Whether boxes are a tensor: what a format checks whose tensors are saved in chunks.
#ifndef CKPTD_COMMON_SOURCE_TILING_H_
#define CKPTD_COMMON_SOURCE_TILING_H_

#include <span>
#include <string>

#include "common/source/index.h"

namespace ckptd {

// Why these boxes are not a tensor of that shape with each element once, as the end of a sentence
// ("the chunk of (3, 4) at (2, 0) overlaps the one of (3, 4) at (0, 0)", "12 of its 40 elements
// are in no chunk"). Empty: they are. Boxes without elements count for nothing, wherever they are.
// Pure; thread-safe. Takes time linear in the boxes where these lie on a grid.
std::string WhyNoTiling(const Shape& shape, std::span<const Box> boxes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_TILING_H_
