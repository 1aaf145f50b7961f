// Element casts between F16, BF16, F32 and F64, bit for bit as PyTorch's CPU kernels: round to
// nearest even, subnormals kept, overflow to infinity. F64 goes to F16 or BF16 through F32 (two
// roundings, as c10 does).
//
// NaN stays NaN. Its bits follow torch where all of torch's kernels agree (F32 <-> F64, F16 ->
// F64, F16 -> BF16, BF16 -> F32, BF16 -> F64). In the other pairs torch's kernels differ with
// CPU, length and stride. Ours then write 0x7fc0 to BF16. To other types they keep the sign and
// the leading payload bits, made quiet. Results are the same on every CPU.
#ifndef CKPTD_COMMON_CAST_CAST_H_
#define CKPTD_COMMON_CAST_CAST_H_

#include <cstddef>

#include "common/source/dtype.h"

namespace ckptd {

// Casts `count` elements from `src` to `dst`, which need no alignment and must
// not overlap. Both dtypes must be castable (IsCastable); equal ones copy.
// Thread-safe; assumes the default floating-point environment.
void Cast(Dtype from, Dtype to, const std::byte* src, std::byte* dst, size_t count);

namespace internal {

// Signature of Cast. There is one kernel per vector width, exposed so that tests can compare
// them. Null when this CPU lacks it.
using CastKernel = void (*)(Dtype, Dtype, const std::byte*, std::byte*, size_t);
CastKernel CastKernelSse2();
CastKernel CastKernelAvx2();
CastKernel CastKernelAvx512();

}  // namespace internal
}  // namespace ckptd

#endif  // CKPTD_COMMON_CAST_CAST_H_
