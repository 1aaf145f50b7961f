#include "server/transfer/stream_copy.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "common/base/cpu.h"

namespace ckptd {
namespace internal {

#define CKPTD_LINE_KERNELS(isa)                                               \
  namespace isa {                                                             \
  void StreamInOrder(std::byte* dst, const std::byte* src, size_t lines);     \
  void StreamAcrossPages(std::byte* dst, const std::byte* src, size_t lines); \
  LineKernel Of(LineOrder order) {                                            \
    return order == LineOrder::kInOrder ? StreamInOrder : StreamAcrossPages;  \
  }                                                                           \
  }
CKPTD_LINE_KERNELS(sse2)
CKPTD_LINE_KERNELS(avx2)
CKPTD_LINE_KERNELS(avx512)
#undef CKPTD_LINE_KERNELS

LineKernel LineKernelSse2(LineOrder order) { return sse2::Of(order); }
LineKernel LineKernelAvx2(LineOrder order) { return HasAvx2() ? avx2::Of(order) : nullptr; }
LineKernel LineKernelAvx512(LineOrder order) { return HasAvx512() ? avx512::Of(order) : nullptr; }

LineOrder LineOrderOfThisCpu() {
  return __builtin_cpu_is("intel") ? LineOrder::kAcrossPages : LineOrder::kInOrder;
}

}  // namespace internal

namespace {

constexpr size_t kLine = 64;
// Below this, filling the partial lines at both ends costs more than it saves.
constexpr size_t kPlainBelow = 512;

internal::LineKernel PickKernel() {
  const internal::LineOrder order = internal::LineOrderOfThisCpu();
  if (auto* kernel = internal::LineKernelAvx512(order)) return kernel;
  if (auto* kernel = internal::LineKernelAvx2(order)) return kernel;
  return internal::LineKernelSse2(order);
}

}  // namespace

void StreamCopy(std::byte* dst, const std::byte* src, size_t bytes) {
  static const internal::LineKernel kernel = PickKernel();
  if (bytes < kPlainBelow) {
    std::memcpy(dst, src, bytes);
    return;
  }
  const size_t head = (kLine - reinterpret_cast<uintptr_t>(dst) % kLine) % kLine;
  std::memcpy(dst, src, head);
  dst += head;
  src += head;
  bytes -= head;
  kernel(dst, src, bytes / kLine);
  const size_t done = bytes / kLine * kLine;
  std::memcpy(dst + done, src + done, bytes - done);
}

void StreamFence() { _mm_sfence(); }

}  // namespace ckptd
