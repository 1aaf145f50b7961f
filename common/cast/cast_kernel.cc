// Compiled once per vector width, into namespace CKPTD_ISA. Every pair of types goes through F32,
// which loses nothing except for F64 -> F64 (a plain copy, not done here). Uses no std templates:
// an inline function compiled for wide vectors must not become the copy that the whole program
// links to.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "common/source/dtype.h"

namespace ckptd::internal::CKPTD_ISA {

void CastElements(Dtype from, Dtype to, const std::byte* src, std::byte* dst, size_t count);

namespace {

constexpr size_t SizeOf(Dtype t) { return t == Dtype::kF64 ? 8 : t == Dtype::kF32 ? 4 : 2; }

[[maybe_unused]] constexpr int kRound = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

#if defined(__AVX512F__)

constexpr size_t kLanes = 16;
using Floats = __m512;

template <Dtype T>
Floats Load(const std::byte* p) {
  if constexpr (T == Dtype::kF64) {
    const __m256 low = _mm512_cvtpd_ps(_mm512_loadu_pd(p));
    const __m256 high = _mm512_cvtpd_ps(_mm512_loadu_pd(p + 64));
    return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(low)),
                                               _mm256_castps_pd(high), 1));
  } else if constexpr (T == Dtype::kF32) {
    return _mm512_loadu_ps(p);
  } else {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (T == Dtype::kF16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
}

__m256i ToBf16(Floats v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
}

template <Dtype T>
void Store(std::byte* p, Floats v) {
  if constexpr (T == Dtype::kF64) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
    _mm512_storeu_pd(p, _mm512_cvtps_pd(_mm512_castps512_ps256(v)));
    _mm512_storeu_pd(p + 64, _mm512_cvtps_pd(high));
  } else if constexpr (T == Dtype::kF32) {
    _mm512_storeu_ps(p, v);
  } else {
    const __m256i half = T == Dtype::kF16 ? _mm512_cvtps_ph(v, kRound) : ToBf16(v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half);
  }
}

#elif defined(__AVX2__)

constexpr size_t kLanes = 8;
using Floats = __m256;

template <Dtype T>
Floats Load(const std::byte* p) {
  if constexpr (T == Dtype::kF64) {
    const auto* d = reinterpret_cast<const double*>(p);
    return _mm256_set_m128(_mm256_cvtpd_ps(_mm256_loadu_pd(d + 4)),
                           _mm256_cvtpd_ps(_mm256_loadu_pd(d)));
  } else if constexpr (T == Dtype::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  } else {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if constexpr (T == Dtype::kF16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
}

__m128i ToBf16(Floats v) {
  const __m256i bits = _mm256_castps_si256(v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}

template <Dtype T>
void Store(std::byte* p, Floats v) {
  if constexpr (T == Dtype::kF64) {
    auto* d = reinterpret_cast<double*>(p);
    _mm256_storeu_pd(d, _mm256_cvtps_pd(_mm256_castps256_ps128(v)));
    _mm256_storeu_pd(d + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)));
  } else if constexpr (T == Dtype::kF32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(p), v);
  } else {
    const __m128i half = T == Dtype::kF16 ? _mm256_cvtps_ph(v, kRound) : ToBf16(v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half);
  }
}

#else

constexpr size_t kLanes = 1;
using Floats = float;

template <typename To, typename From>
To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

float FromHalf(uint32_t h) {
  const uint32_t sign = (h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00) {
    const uint32_t quiet = magnitude == 0x7c00 ? 0 : 0x00400000u;
    return BitCast<float>(sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude < 0x0400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return BitCast<float>(sign | BitCast<uint32_t>(value));
  }
  return BitCast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

uint32_t ToHalf(float f) {
  const uint32_t bits = BitCast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and up
  if (magnitude >= 0x38800000u) {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return sign | ((rounded - (112u << 23)) >> 13);
  }
  const uint32_t exponent = magnitude >> 23;
  if (exponent < 102) return sign;  // below half of the smallest subnormal
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const uint32_t shift = 126 - exponent;
  const uint32_t half = 1u << (shift - 1);
  const uint32_t rest = mantissa & ((1u << shift) - 1);
  const uint32_t whole = mantissa >> shift;
  const bool up = rest > half || (rest == half && (whole & 1u) != 0);
  return sign | (whole + (up ? 1u : 0u));
}

uint32_t ToBf16(float f) {
  const uint32_t bits = BitCast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

template <Dtype T>
Floats Load(const std::byte* p) {
  if constexpr (T == Dtype::kF64) {
    double d;
    __builtin_memcpy(&d, p, sizeof d);
    return static_cast<float>(d);
  } else if constexpr (T == Dtype::kF32) {
    float f;
    __builtin_memcpy(&f, p, sizeof f);
    return f;
  } else {
    uint16_t h;
    __builtin_memcpy(&h, p, sizeof h);
    if constexpr (T == Dtype::kF16) return FromHalf(h);
    return BitCast<float>(static_cast<uint32_t>(h) << 16);
  }
}

template <Dtype T>
void Store(std::byte* p, Floats v) {
  if constexpr (T == Dtype::kF64) {
    const double d = static_cast<double>(v);
    __builtin_memcpy(p, &d, sizeof d);
  } else if constexpr (T == Dtype::kF32) {
    __builtin_memcpy(p, &v, sizeof v);
  } else {
    const auto h = static_cast<uint16_t>(T == Dtype::kF16 ? ToHalf(v) : ToBf16(v));
    __builtin_memcpy(p, &h, sizeof h);
  }
}

#endif

template <Dtype From, Dtype To>
void Loop(const std::byte* src, std::byte* dst, size_t count) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Store<To>(dst + i * SizeOf(To), Load<From>(src + i * SizeOf(From)));
  }
  if (i == count) return;
  // The tail uses the same instructions, so that bits do not depend on length.
  std::byte in[kLanes * SizeOf(From)] = {};
  std::byte out[kLanes * SizeOf(To)];
  __builtin_memcpy(in, src + i * SizeOf(From), (count - i) * SizeOf(From));
  Store<To>(out, Load<From>(in));
  __builtin_memcpy(dst + i * SizeOf(To), out, (count - i) * SizeOf(To));
}

template <Dtype From>
void LoopTo(Dtype to, const std::byte* src, std::byte* dst, size_t count) {
  switch (to) {
    case Dtype::kF16:
      return Loop<From, Dtype::kF16>(src, dst, count);
    case Dtype::kBF16:
      return Loop<From, Dtype::kBF16>(src, dst, count);
    case Dtype::kF32:
      return Loop<From, Dtype::kF32>(src, dst, count);
    case Dtype::kF64:
      return Loop<From, Dtype::kF64>(src, dst, count);
    default:
      __builtin_trap();  // the schedule admits castable types only
  }
}

}  // namespace

void CastElements(Dtype from, Dtype to, const std::byte* src, std::byte* dst, size_t count) {
  switch (from) {
    case Dtype::kF16:
      return LoopTo<Dtype::kF16>(to, src, dst, count);
    case Dtype::kBF16:
      return LoopTo<Dtype::kBF16>(to, src, dst, count);
    case Dtype::kF32:
      return LoopTo<Dtype::kF32>(to, src, dst, count);
    case Dtype::kF64:
      return LoopTo<Dtype::kF64>(to, src, dst, count);
    default:
      __builtin_trap();
  }
}

}  // namespace ckptd::internal::CKPTD_ISA
