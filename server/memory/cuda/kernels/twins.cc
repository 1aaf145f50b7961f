// The kernels on the host, for tests. A fake driver runs them instead of GPU code, compiled from
// the same headers. Surplus or missing threads behave as on a GPU.
#include <cstddef>

#include "server/memory/cuda/kernels/params.h"

namespace ckptd::kernels {
namespace {

template <typename Kernel>
void RunGrid(const void* params, unsigned grid, unsigned block) {
  const auto& own = *static_cast<const typename Kernel::Params*>(params);
  for (unsigned b = 0; b < grid; ++b) {
    BlockWork work{};
    Kernel::Begin(own, b, work);
    for (unsigned thread = 0; thread < block; ++thread) Kernel::Run(own, work, thread);
  }
}

}  // namespace
}  // namespace ckptd::kernels

#define CKPTD_TWIN(name, Kernel)                                                   \
  extern "C" void name##_twin(const void* params, unsigned grid, unsigned block);  \
  extern "C" void name##_twin(const void* params, unsigned grid, unsigned block) { \
    ckptd::kernels::RunGrid<ckptd::kernels::Kernel>(params, grid, block);          \
  }                                                                                \
  extern "C" const std::size_t name##_twin_bytes;                                  \
  extern "C" const std::size_t name##_twin_bytes = sizeof(ckptd::kernels::Kernel::Params);

CKPTD_TWIN(ckptd_pack, Pack)
CKPTD_TWIN(ckptd_cast, Cast)
CKPTD_TWIN(ckptd_batch, Batch)
