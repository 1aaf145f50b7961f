// Copies past the caches: the target of a load is far larger than they are, and
// a store that first reads its line costs a third more memory traffic.
#ifndef CKPTD_SERVER_TRANSFER_STREAM_COPY_H_
#define CKPTD_SERVER_TRANSFER_STREAM_COPY_H_

#include <cstddef>

namespace ckptd {

// memcpy with non-temporal stores for whole cache lines of `dst`; pieces too
// short to gain are copied plainly. No alignment needed, no overlap allowed.
// Weakly ordered: call StreamFence before another thread is told to read `dst`.
void StreamCopy(std::byte* dst, const std::byte* src, size_t bytes);

// Orders all earlier stores of this thread before its later ones.
void StreamFence();

namespace internal {

// In which order lines are copied: which one is fast depends on how a processor fetches ahead.
enum class LineOrder {
  kInOrder,      // one after another, nothing prefetched: AMD, and what is not known
  kAcrossPages,  // four pages side by side: Intel
};
LineOrder LineOrderOfThisCpu();

// Copies `lines` whole 64-byte lines; `dst` is 64-byte aligned. Null when this
// CPU lacks the vectors.
using LineKernel = void (*)(std::byte* dst, const std::byte* src, size_t lines);
LineKernel LineKernelSse2(LineOrder order);
LineKernel LineKernelAvx2(LineOrder order);
LineKernel LineKernelAvx512(LineOrder order);

}  // namespace internal
}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_STREAM_COPY_H_
