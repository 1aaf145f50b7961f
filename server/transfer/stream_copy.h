// Copies that bypass the caches. The target of a load is far larger than the caches, and a store
// that first reads its line costs a third more memory traffic.
#ifndef CKPTD_SERVER_TRANSFER_STREAM_COPY_H_
#define CKPTD_SERVER_TRANSFER_STREAM_COPY_H_

#include <cstddef>

namespace ckptd {

// memcpy with non-temporal stores for whole cache lines of `dst`. Short pieces are copied
// plainly. No alignment is needed; the ranges must not overlap. Weakly ordered: call StreamFence
// before another thread is told to read `dst`.
void StreamCopy(std::byte* dst, const std::byte* src, size_t bytes);

// Orders all earlier stores of this thread before its later ones.
void StreamFence();

namespace internal {

// The order in which lines are copied. Which one is fast depends on the processor's prefetcher.
enum class LineOrder {
  kInOrder,      // one after another, without prefetches: AMD, and unknown processors
  kAcrossPages,  // four pages at the same time: Intel
};
LineOrder LineOrderOfThisCpu();

// Copies `lines` whole 64-byte lines. `dst` must be 64-byte aligned. Null if this CPU lacks the
// vectors.
using LineKernel = void (*)(std::byte* dst, const std::byte* src, size_t lines);
LineKernel LineKernelSse2(LineOrder order);
LineKernel LineKernelAvx2(LineOrder order);
LineKernel LineKernelAvx512(LineOrder order);

}  // namespace internal
}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_STREAM_COPY_H_
