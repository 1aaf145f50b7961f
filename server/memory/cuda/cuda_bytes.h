// Slabs in the memory of a GPU: this daemon's own, or a peer's on the same host.
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

// Memory that lanes and kernels can reach at an address of one GPU. Thread-safe, as StagedMemory
// says. Keeps the engine running.
class CudaBytes : public StagedMemory {
 public:
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override;
  unsigned Lanes() const override { return engine_->CurrentPool()->Lanes(); }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override;
  absl::Status Zero(std::span<const SlabSpan> spans) override;

  const std::shared_ptr<CudaDevice>& device() const { return gpu_.device; }
  const CudaKernels* kernels() const { return gpu_.kernels.get(); }

 protected:
  CudaBytes(std::shared_ptr<CudaEngine> engine, CudaGpu gpu)
      : engine_(std::move(engine)), gpu_(std::move(gpu)) {}

 private:
  const std::shared_ptr<CudaEngine> engine_;  // destroyed last
  const CudaGpu gpu_;
};

// A whole slab, mapped.
class CudaSlabBytes final : public CudaBytes {
 public:
  // `gpu`: the GPU that has the memory.
  CudaSlabBytes(std::shared_ptr<CudaEngine> engine, CudaGpu gpu, CudaAllocation memory)
      : CudaBytes(std::move(engine), std::move(gpu)), memory_(std::move(memory)) {}

  uint64_t bytes() const override { return memory_.bytes(); }
  uint64_t address() const override { return memory_.address(); }

 private:
  const CudaAllocation memory_;
};

// Reads a complete slab that is not mapped, only its descriptor keeps the memory. The first Read
// maps it until this object ends. Thread-safe.
class UnmappedBytes final : public StagedMemory {
 public:
  UnmappedBytes(std::shared_ptr<CudaEngineSource> source, std::shared_ptr<const UniqueFd> fd,
                uint64_t bytes)
      : source_(std::move(source)), fd_(std::move(fd)), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }
  // Always FailedPrecondition, because nobody writes a complete slab.
  absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() override;
  unsigned Lanes() const override { return 1; }
  absl::Status Read(uint64_t offset, std::span<std::byte> out) override;

 private:
  absl::StatusOr<std::shared_ptr<CudaSlabBytes>> Map();

  const std::shared_ptr<CudaEngineSource> source_;
  const std::shared_ptr<const UniqueFd> fd_;
  const uint64_t bytes_;
  Mutex mutex_;
  std::shared_ptr<CudaSlabBytes> mapped_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_BYTES_H_
