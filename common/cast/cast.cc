#include "common/cast/cast.h"

#include <cstring>

#include "common/base/cpu.h"

namespace ckptd {
namespace internal {

#define CKPTD_DECLARE_CAST(isa)                                                                \
  namespace isa {                                                                              \
  void CastElements(Dtype from, Dtype to, const std::byte* src, std::byte* dst, size_t count); \
  }
CKPTD_DECLARE_CAST(sse2)
CKPTD_DECLARE_CAST(avx2)
CKPTD_DECLARE_CAST(avx512)
#undef CKPTD_DECLARE_CAST

CastKernel CastKernelSse2() { return sse2::CastElements; }
CastKernel CastKernelAvx2() { return HasAvx2() ? avx2::CastElements : nullptr; }
CastKernel CastKernelAvx512() { return HasAvx512() ? avx512::CastElements : nullptr; }

}  // namespace internal

namespace {

internal::CastKernel PickKernel() {
  if (auto* kernel = internal::CastKernelAvx512()) return kernel;
  if (auto* kernel = internal::CastKernelAvx2()) return kernel;
  return internal::CastKernelSse2();
}

}  // namespace

void Cast(Dtype from, Dtype to, const std::byte* src, std::byte* dst, size_t count) {
  static const internal::CastKernel kernel = PickKernel();
  if (from == to) {
    // Equal types are copied untouched, NaN payloads included.
    std::memcpy(dst, src, count * (BitsOf(from) / 8));
    return;
  }
  kernel(from, to, src, dst, count);
}

}  // namespace ckptd
