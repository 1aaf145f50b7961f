#include "common/base/byte_swap.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace ckptd {
namespace internal {
namespace {

uint16_t Reversed(uint16_t number) { return __builtin_bswap16(number); }
uint32_t Reversed(uint32_t number) { return __builtin_bswap32(number); }
uint64_t Reversed(uint64_t number) { return __builtin_bswap64(number); }

template <typename Number>
void SwapEach(const std::byte* src, std::byte* dst, size_t bytes) {
  for (size_t i = 0; i < bytes; i += sizeof(Number)) {
    Number number;
    std::memcpy(&number, src + i, sizeof number);
    number = Reversed(number);
    std::memcpy(dst + i, &number, sizeof number);
  }
}

void SwapPlain(size_t width, const std::byte* src, std::byte* dst, size_t bytes) {
  switch (width) {
    case 2:
      return SwapEach<uint16_t>(src, dst, bytes);
    case 4:
      return SwapEach<uint32_t>(src, dst, bytes);
    default:
      return SwapEach<uint64_t>(src, dst, bytes);
  }
}

__attribute__((target("avx2"))) void SwapAvx2(size_t width, const std::byte* src, std::byte* dst,
                                              size_t bytes) {
  constexpr size_t kVector = sizeof(__m256i);
  alignas(kVector) char places[kVector];
  for (size_t i = 0; i < kVector; ++i) {
    // Within each half, as the shuffle counts.
    places[i] = static_cast<char>((i % 16) ^ (width - 1));
  }
  const __m256i order = _mm256_load_si256(reinterpret_cast<const __m256i*>(places));
  size_t i = 0;
  for (; i + kVector <= bytes; i += kVector) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(dst + i), _mm256_shuffle_epi8(numbers, order));
  }
  SwapPlain(width, src + i, dst + i, bytes - i);
}

}  // namespace

SwapKernel SwapKernelPlain() { return SwapPlain; }
SwapKernel SwapKernelAvx2() { return __builtin_cpu_supports("avx2") ? SwapAvx2 : nullptr; }

}  // namespace internal

namespace {

internal::SwapKernel PickKernel() {
  auto* const wide = internal::SwapKernelAvx2();
  return wide != nullptr ? wide : internal::SwapKernelPlain();
}

}  // namespace

void NegateNumbers(size_t width, Signs which, std::byte* numbers, size_t bytes) {
  if (which == Signs::kNone) return;
  const size_t step = which == Signs::kBoth ? width : 2 * width;
  const size_t first = which == Signs::kSecond ? 2 * width - 1 : width - 1;
  for (size_t at = first; at < bytes; at += step) numbers[at] ^= std::byte{0x80};
}

void SwapBytes(size_t width, const std::byte* src, std::byte* dst, size_t bytes) {
  static const internal::SwapKernel kernel = PickKernel();
  if (width <= 1) {
    std::memmove(dst, src, bytes);
    return;
  }
  kernel(width, src, dst, bytes);
}

}  // namespace ckptd
