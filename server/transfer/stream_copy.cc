#include "server/transfer/stream_copy.h"

#include <emmintrin.h>

#include <cstdint>
#include <cstring>

#include "server/transfer/cpu.h"

namespace ckptd {
namespace internal {

#define CKPTD_DECLARE_LINES(isa)                                        \
  namespace isa {                                                       \
  void StreamLines(std::byte* dst, const std::byte* src, size_t lines); \
  }
CKPTD_DECLARE_LINES(sse2)
CKPTD_DECLARE_LINES(avx2)
CKPTD_DECLARE_LINES(avx512)
#undef CKPTD_DECLARE_LINES

LineKernel LineKernelSse2() { return sse2::StreamLines; }
LineKernel LineKernelAvx2() { return HasAvx2() ? avx2::StreamLines : nullptr; }
LineKernel LineKernelAvx512() { return HasAvx512() ? avx512::StreamLines : nullptr; }

}  // namespace internal

namespace {

constexpr size_t kLine = 64;
// Below this, filling the partial lines at both ends costs more than it saves.
constexpr size_t kPlainBelow = 512;

internal::LineKernel PickKernel() {
  if (auto* kernel = internal::LineKernelAvx512()) return kernel;
  if (auto* kernel = internal::LineKernelAvx2()) return kernel;
  return internal::LineKernelSse2();
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
