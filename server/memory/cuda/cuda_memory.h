// Device memory behind the seam of server/memory: a slab is one CUDA allocation whose
// descriptor clients import, or, where a load asks for it, one that they open by name
// (legacy CUDA IPC), which then must not go before they have closed it.
//
// What was handed out is never used again here: the driver does not say who still maps
// it, and gives it back by itself when the last one lets go. So there is no arena;
// fresh memory costs a GPU little. Read-only is the importer's own choice: it protects
// against mistakes, not against a client that means it.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/cuda/device.h"
#include "server/memory/cuda/kernels.h"
#include "server/memory/cuda/staging_pool.h"
#include "server/memory/memory.h"

namespace ckptd {

struct CudaMemoryOptions {
  uint64_t budget_bytes = 0;
  uint64_t staging_bytes = uint64_t{64} << 20;  // pinned host memory, once
  // Code of the copy kernels, kept by the driver; empty: the processor does their work.
  std::span<const std::byte> kernels = {};
};

// Thread-safe, as far as MemoryBackend says. Slabs may outlive it.
class CudaMemory final : public MemoryBackend {
 public:
  // Errors: DEVICE_FAILED, NO_MEMORY for the staging memory.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(std::shared_ptr<CudaDevice> device,
                                                            CudaMemoryOptions options);

  // Sizes in Usage() are those of whole allocations. Besides the budget, what is free
  // on the GPU limits Allocate.
  std::vector<HandleKind> kinds() const override {
    return {HandleKind::kVmmFd, HandleKind::kCudaIpc};
  }
  using MemoryBackend::Allocate;
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended,
                                                 HandleKind kind) override;
  absl::Status Seal(Slab& slab) override;
  absl::StatusOr<SlabHandle> Export(Slab& slab, AttachMode mode) override;
  void GiveUp(std::unique_ptr<Slab> slab) override;
  void NewReader() override {}
  std::vector<uint64_t> OwnedSegments() const override;
  MemoryUsage Usage() const override;
  std::string tier() const override;
  std::string device() const override { return gpu_.device->info().uuid; }

  // A descriptor of a segment, for a daemon of our group on this host. NotFound when we
  // do not own it; FailedPrecondition HANDLE_KIND where it has none (kCudaIpc).
  absl::StatusOr<UniqueFd> SegmentFd(uint64_t segment_id) const;
  // The slab of a peer on this host, for writing: `fd` is what its SegmentFd gave, `bytes`
  // its size. Errors: NO_DEVICE when this process does not see that GPU, those of
  // CudaAllocation::Import.
  absl::StatusOr<std::shared_ptr<StagedMemory>> ImportPeer(const std::string& device_uuid,
                                                           const UniqueFd& fd, uint64_t bytes);

 private:
  struct Books;  // what slabs and backend share
  struct Gpu {
    std::shared_ptr<CudaDevice> device;
    std::shared_ptr<const CudaKernels> kernels;  // null: it has none
  };

  CudaMemory(Gpu gpu, CudaMemoryOptions options, std::shared_ptr<StagingPool> pool);
  static absl::StatusOr<Gpu> WithKernels(std::shared_ptr<CudaDevice> device,
                                         const CudaMemoryOptions& options);
  absl::StatusOr<Gpu> GpuOf(const std::string& uuid);
  absl::Status CheckRoom(uint64_t bytes) const;

  friend class CudaSlab;
  const Gpu gpu_;
  const CudaMemoryOptions options_;
  const std::shared_ptr<StagingPool> pool_;
  const std::shared_ptr<Books> books_;
  Mutex peers_mutex_;
  std::map<std::string, Gpu> peers_ ABSL_GUARDED_BY(peers_mutex_);  // by UUID
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_
