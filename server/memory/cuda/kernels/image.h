// The machine code of the kernels that the build put into this binary.
#ifndef CKPTD_SERVER_MEMORY_CUDA_KERNELS_IMAGE_H_
#define CKPTD_SERVER_MEMORY_CUDA_KERNELS_IMAGE_H_

#include <cstddef>
#include <span>

namespace ckptd::kernels {

// A fat binary for cuModuleLoadData, valid for the life of the program. Empty if ckptd was built
// without nvcc.
std::span<const std::byte> KernelImage();

}  // namespace ckptd::kernels

#endif  // CKPTD_SERVER_MEMORY_CUDA_KERNELS_IMAGE_H_
