#include "server/memory/cuda/kernels/image.h"

#if defined(CKPTD_HAS_KERNELS)
// image.S defines these around the fat binary.
extern "C" const std::byte ckptd_kernel_image[];      // NOLINT(modernize-avoid-c-arrays)
extern "C" const std::byte ckptd_kernel_image_end[];  // NOLINT(modernize-avoid-c-arrays)
#endif

namespace ckptd::kernels {

std::span<const std::byte> KernelImage() {
#if defined(CKPTD_HAS_KERNELS)
  return {ckptd_kernel_image, ckptd_kernel_image_end};
#else
  return {};
#endif
}

}  // namespace ckptd::kernels
