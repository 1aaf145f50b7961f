// Casts of one element between F16, BF16, F32 and F64, on bits, for GPUs and the host. The
// results equal those of common/cast/cast.h, NaN bits included. Conversion instructions are
// used for numbers only, because GPUs make other NaNs than processors.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_ELEMENT_CAST_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_ELEMENT_CAST_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "server/memory/cuda/kernels/index.h"

namespace ckptd::kernels {

enum class Float : uint32_t { kF16, kBF16, kF32, kF64 };
inline constexpr uint32_t kFloats = 4;

CKPTD_HOST_DEVICE constexpr uint32_t SizeOf(Float type) {
  return type == Float::kF64 ? 8 : type == Float::kF32 ? 4 : 2;
}

template <Float kType>
using Bits = std::conditional_t<SizeOf(kType) == 8, uint64_t,
                                std::conditional_t<SizeOf(kType) == 4, uint32_t, uint16_t>>;

template <typename To, typename From>
CKPTD_HOST_DEVICE inline To SameBits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Casts to F32. Every cast goes through F32.
CKPTD_HOST_DEVICE inline uint32_t HalfToSingle(uint32_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity; NaN becomes quiet
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0;
    return sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13);
  }
#if defined(__CUDA_ARCH__)
  float single = 0;
  asm("cvt.f32.f16 %0, %1;" : "=f"(single) : "h"(static_cast<uint16_t>(half)));
  return SameBits<uint32_t>(single);
#else
  if (magnitude < 0x0400u) {  // subnormal there, normal here
    return sign | SameBits<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  }
  return sign | ((magnitude << 13) + (112u << 23));
#endif
}

CKPTD_HOST_DEVICE inline uint32_t DoubleToSingle(uint64_t bits) {
  if ((bits & ~(uint64_t{1} << 63)) > 0x7ff0000000000000u) {
    const uint32_t sign = static_cast<uint32_t>(bits >> 32) & 0x80000000u;
    return sign | 0x7fc00000u | (static_cast<uint32_t>(bits >> 29) & 0x003fffffu);
  }
  return SameBits<uint32_t>(static_cast<float>(SameBits<double>(bits)));
}

// Casts from F32.
CKPTD_HOST_DEVICE inline uint16_t SingleToHalf(uint32_t bits) {
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
#if defined(__CUDA_ARCH__)
  uint16_t rounded = 0;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(SameBits<float>(bits)));
  return rounded;
#else
  uint32_t half = 0;
  if (magnitude >= 0x477ff000u) {  // 65520 and up
    half = 0x7c00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14. Floats in [0.5, 1) are 2^-24 apart, like subnormal halves, so the addition
    // rounds.
    half = SameBits<uint32_t>(SameBits<float>(magnitude) + 0.5f) - SameBits<uint32_t>(0.5f);
  } else {
    half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | half);
#endif
}

CKPTD_HOST_DEVICE inline uint16_t SingleToBrain(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

CKPTD_HOST_DEVICE inline uint64_t SingleToDouble(uint32_t bits) {
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    const uint64_t sign = static_cast<uint64_t>(bits & 0x80000000u) << 32;
    return sign | 0x7ff8000000000000u | (static_cast<uint64_t>(bits & 0x003fffffu) << 29);
  }
  return SameBits<uint64_t>(static_cast<double>(SameBits<float>(bits)));
}

template <Float kFrom, Float kTo>
CKPTD_HOST_DEVICE inline Bits<kTo> CastElement(Bits<kFrom> from) {
  uint32_t single = 0;
  if constexpr (kFrom == Float::kF16) {
    single = HalfToSingle(from);
  } else if constexpr (kFrom == Float::kBF16) {
    single = static_cast<uint32_t>(from) << 16;
  } else if constexpr (kFrom == Float::kF32) {
    single = from;
  } else {
    single = DoubleToSingle(from);
  }
  if constexpr (kTo == Float::kF16) {
    return SingleToHalf(single);
  } else if constexpr (kTo == Float::kBF16) {
    return SingleToBrain(single);
  } else if constexpr (kTo == Float::kF32) {
    return single;
  } else {
    return SingleToDouble(single);
  }
}

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_ELEMENT_CAST_H_
