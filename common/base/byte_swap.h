// Turns numbers of the other byte order round.
#ifndef CKPTD_COMMON_BASE_BYTE_SWAP_H_
#define CKPTD_COMMON_BASE_BYTE_SWAP_H_

#include <cstddef>

namespace ckptd {

// Copies `bytes` from `src` to `dst` with the bytes of each number in the opposite order. Numbers
// have `width` bytes: 1 (a plain copy), 2, 4 or 8, of which `bytes` is a multiple. No alignment is
// needed. The ranges are the same, or share nothing. Thread-safe.
void SwapBytes(size_t width, const std::byte* src, std::byte* dst, size_t bytes);

namespace internal {

// Signature of SwapBytes, for widths from 2 on. There is one kernel per vector width, exposed so
// that tests can compare them. Null when this CPU lacks it.
using SwapKernel = void (*)(size_t, const std::byte*, std::byte*, size_t);
SwapKernel SwapKernelPlain();
SwapKernel SwapKernelAvx2();

}  // namespace internal
}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_BYTE_SWAP_H_
