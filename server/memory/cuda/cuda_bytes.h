// A slab in the memory of a GPU, this daemon's own or a peer's on the same host.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_

#include <memory>
#include <utility>

#include "common/cuda/allocation.h"
#include "server/memory/cuda/kernels.h"
#include "server/memory/cuda/staging_pool.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// Thread-safe, as StagedMemory says.
class CudaBytes final : public StagedMemory {
 public:
  // `kernels` of its device, null: it has none.
  CudaBytes(CudaAllocation memory, std::shared_ptr<StagingPool> pool,
            std::shared_ptr<const CudaKernels> kernels)
      : memory_(std::move(memory)), pool_(std::move(pool)), kernels_(std::move(kernels)) {}

  // Fills it with zeros, and waits for that.
  absl::Status Zero();

  uint64_t bytes() const override { return memory_.bytes(); }
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override;
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override;

  CUdeviceptr address() const { return memory_.address(); }
  const std::shared_ptr<CudaDevice>& device() const { return memory_.device(); }
  const CudaAllocation& allocation() const { return memory_; }
  const CudaKernels* kernels() const { return kernels_.get(); }

 private:
  const CudaAllocation memory_;
  const std::shared_ptr<StagingPool> pool_;
  const std::shared_ptr<const CudaKernels> kernels_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_
