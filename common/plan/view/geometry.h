// Tensors of other shapes over the same bytes: boxes and strides change, files do not. Pure;
// thread-safe.
#ifndef CKPTD_COMMON_PLAN_VIEW_GEOMETRY_H_
#define CKPTD_COMMON_PLAN_VIEW_GEOMETRY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/source/index.h"

namespace ckptd::view {

// Each of these changes `tensor` and returns why it cannot, as the end of a sentence ("its axis 0
// has 8 elements, not 12"); empty: it is done. What could not be done leaves it in no useful state.
// Axes count from 0 and are those of the tensor before.

// Dimension i becomes what dimension axes[i] was. `axes` is a permutation.
std::string Permute(TensorEntry& tensor, std::span<const size_t> axes);

// Elements [begin, end) of `axis`.
std::string Narrow(TensorEntry& tensor, size_t axis, uint64_t begin, uint64_t end);

// Every `step`th element of `axis`, beginning with `first`.
std::string TakeEvery(TensorEntry& tensor, size_t axis, uint64_t first, uint64_t step);

// A dimension of one element before `axis`; of the rank of the tensor: behind the last one.
std::string AddAxis(TensorEntry& tensor, size_t axis);

// Takes away a dimension of one element.
std::string DropAxis(TensorEntry& tensor, size_t axis);

// `more` behind `tensor` along `axis`. They agree in all else: dtype, other sizes, signs.
std::string Append(TensorEntry& tensor, const TensorEntry& more, size_t axis);

}  // namespace ckptd::view

#endif  // CKPTD_COMMON_PLAN_VIEW_GEOMETRY_H_
