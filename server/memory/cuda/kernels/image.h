// The machine code of the kernels, as the build put it into this binary.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_IMAGE_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_IMAGE_H_

#include <cstddef>
#include <span>

namespace ckptd::kernels {

// A fat binary for cuModuleLoadData; lives as long as the program. Empty when ckptd was
// built without nvcc.
std::span<const std::byte> KernelImage();

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_IMAGE_H_
