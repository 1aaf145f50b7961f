// A slab in the memory of a GPU, this daemon's own or a peer's on the same host.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_

#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "common/cuda/allocation.h"
#include "server/memory/cuda/cuda_engine.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// Mapped. Thread-safe, as StagedMemory says. Keeps the engine running.
class CudaBytes final : public StagedMemory {
 public:
  // `kernels` of the memory's device, null: it has none.
  CudaBytes(std::shared_ptr<CudaEngine> engine, CudaAllocation memory,
            std::shared_ptr<const CudaKernels> kernels)
      : engine_(std::move(engine)), kernels_(std::move(kernels)), memory_(std::move(memory)) {}

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
  const std::shared_ptr<CudaEngine> engine_;  // goes last
  const std::shared_ptr<const CudaKernels> kernels_;
  const CudaAllocation memory_;
};

// Memory that only its descriptor keeps, as it is read: mapped from the first Read on, as
// long as this lives. Thread-safe.
class RestingBytes final : public StagedMemory {
 public:
  RestingBytes(std::shared_ptr<CudaEngineSource> source, std::shared_ptr<const UniqueFd> fd,
               uint64_t bytes)
      : source_(std::move(source)), fd_(std::move(fd)), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }
  // FailedPrecondition: it is complete, nothing writes it.
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override;
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override;

 private:
  absl::StatusOr<std::shared_ptr<CudaBytes>> Map();

  const std::shared_ptr<CudaEngineSource> source_;
  const std::shared_ptr<const UniqueFd> fd_;
  const uint64_t bytes_;
  Mutex mutex_;
  std::shared_ptr<CudaBytes> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_
