// Turns numbers of the other byte order round, and signs.
#ifndef CKPTD_COMMON_BASE_BYTE_SWAP_H_
#define CKPTD_COMMON_BASE_BYTE_SWAP_H_

#include <cstddef>
#include <cstdint>

namespace ckptd {

// Copies `bytes` from `src` to `dst` with the bytes of each number in the opposite order. Numbers
// have `width` bytes: 1 (a plain copy), 2, 4 or 8, of which `bytes` is a multiple. No alignment is
// needed. The ranges are the same, or share nothing. Thread-safe.
void SwapBytes(size_t width, const std::byte* src, std::byte* dst, size_t bytes);

// Which of the numbers that follow each other get the other sign: all, or each second one, from the
// first or from the second on.
enum class Signs : uint8_t { kNone = 0, kFirst = 1, kSecond = 2, kBoth = 3 };

// Turns the highest bit of these numbers over, which are little-endian and have `width` bytes: 2, 4
// or 8. The first of `bytes`, a multiple of two widths unless all are turned, is a first one.
// Thread-safe.
void NegateNumbers(size_t width, Signs which, std::byte* numbers, size_t bytes);

namespace internal {

// Signature of SwapBytes, for widths from 2 on. There is one kernel per vector width, exposed so
// that tests can compare them. Null when this CPU lacks it.
using SwapKernel = void (*)(size_t, const std::byte*, std::byte*, size_t);
SwapKernel SwapKernelPlain();
SwapKernel SwapKernelAvx2();

}  // namespace internal
}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_BYTE_SWAP_H_
