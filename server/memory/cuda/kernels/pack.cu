// The kernels. Their code is in the headers, which twins.cc compiles for the host.
#include "server/memory/cuda/kernels/params.h"

namespace ckptd::kernels {
namespace {

template <typename Kernel>
__device__ void RunBlock(const typename Kernel::Params& params) {
  __shared__ BlockWork work;
  if (threadIdx.x == 0) Kernel::Begin(params, blockIdx.x, work);
  __syncthreads();
  Kernel::Run(params, work, threadIdx.x);
}

// Minimum blocks per multiprocessor: 768 threads with 64 bytes in flight each keep today's GPU
// memory busy. A fourth block would make newer compilers spill registers.
constexpr int kBlocks = 3;

}  // namespace
}  // namespace ckptd::kernels

#define CKPTD_KERNEL(name, Kernel)                                                                \
  extern "C" __global__ void __launch_bounds__(ckptd::kernels::kThreads, ckptd::kernels::kBlocks) \
      name(const __grid_constant__ ckptd::kernels::Kernel::Params params) {                       \
    ckptd::kernels::RunBlock<ckptd::kernels::Kernel>(params);                                     \
  }

CKPTD_KERNEL(ckptd_pack, Pack)
CKPTD_KERNEL(ckptd_cast, Cast)
CKPTD_KERNEL(ckptd_batch, Batch)
