// Tells which vector units kernels may use on this CPU.
#ifndef CKPTD_COMMON_BASE_CPU_H_
#define CKPTD_COMMON_BASE_CPU_H_

#include <cpuid.h>

namespace ckptd::internal {

// AVX2 with F16C. F16C is read from leaf 1, because clang 14 refuses its name.
inline bool HasAvx2() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & bit_F16C) != 0;
}

inline bool HasAvx512() { return HasAvx2() && __builtin_cpu_supports("avx512f"); }

}  // namespace ckptd::internal

#endif  // CKPTD_COMMON_BASE_CPU_H_
