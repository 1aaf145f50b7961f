// Compiled once per vector width, into namespace CKPTD_ISA.
#include <immintrin.h>

#include <cstddef>

namespace ckptd::internal::CKPTD_ISA {

void StreamLines(std::byte* dst, const std::byte* src, size_t lines);

namespace {

// Far enough ahead to hide a memory read behind the stores of a page.
constexpr size_t kPrefetchAhead = 1024;

}  // namespace

void StreamLines(std::byte* dst, const std::byte* src, size_t lines) {
  for (size_t i = 0; i < lines; ++i, dst += 64, src += 64) {
    if (i + kPrefetchAhead / 64 < lines) __builtin_prefetch(src + kPrefetchAhead, 0, 0);
#if defined(__AVX512F__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), _mm512_loadu_si512(src));
#elif defined(__AVX2__)
    const auto* from = reinterpret_cast<const __m256i*>(src);
    auto* to = reinterpret_cast<__m256i*>(dst);
    const __m256i a = _mm256_loadu_si256(from);
    const __m256i b = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, a);
    _mm256_stream_si256(to + 1, b);
#else
    const auto* from = reinterpret_cast<const __m128i*>(src);
    auto* to = reinterpret_cast<__m128i*>(dst);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
#endif
  }
}

}  // namespace ckptd::internal::CKPTD_ISA
