// Arithmetic on sizes from files or other processes: no result wraps.
#ifndef CKPTD_COMMON_LAYOUT_CHECKED_MATH_H_
#define CKPTD_COMMON_LAYOUT_CHECKED_MATH_H_

#include <cstdint>
#include <optional>

#include "common/checkpoint/index.h"

namespace ckptd {

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Product of a shape. 0 if any dimension is 0.
inline std::optional<uint64_t> CheckedElements(const Shape& shape) {
  std::optional<uint64_t> product = 1;
  for (const uint64_t size : shape) {
    if (size == 0) return 0;
  }
  for (const uint64_t size : shape) {
    product = CheckedMultiply(*product, size);
    if (!product.has_value()) return std::nullopt;
  }
  return product;
}

// Bytes of `elements` of `bits` each. Nullopt if they are not whole bytes, or do not fit 64 bits.
inline std::optional<uint64_t> CheckedBytes(uint64_t elements, uint32_t bits) {
  const uint64_t eighths = elements % 8 * bits;
  if (eighths % 8 != 0) return std::nullopt;
  const std::optional<uint64_t> whole = CheckedMultiply(elements / 8, bits);
  if (!whole.has_value()) return std::nullopt;
  return CheckedAdd(*whole, eighths / 8);
}

inline uint64_t CeilDivide(uint64_t a, uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_CHECKED_MATH_H_
