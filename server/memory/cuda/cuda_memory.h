// Device memory behind the seam of server/memory. A slab is one CUDA allocation. Clients import
// its descriptor. If a load asks for legacy CUDA IPC, clients open it by a handle instead; such
// memory must not be freed before they have closed it.
//
// Memory that was handed out is never used again. The driver does not say who still maps it, and
// frees it by itself when the last process has closed it. So there is no arena; fresh memory
// costs a GPU little. Whether a mapping is read-only is the importer's own choice: that protects
// against mistakes, not against a hostile client.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cuda/device.h"
#include "server/memory/cuda/cuda_engine.h"
#include "server/memory/memory.h"

namespace ckptd {

struct CudaMemoryOptions {
  uint64_t budget_bytes = 0;
  // As in CudaEngine::Options.
  uint64_t staging_bytes = CudaEngine::Options().staging_bytes;
  std::span<const std::byte> kernels = {};
  // If false, everything that slabs can do without is freed between loads, and the next load or
  // verification starts it anew. Slabs of kind kCudaIpc cannot do without the engine.
  bool keep_engine = true;
};

// Thread-safe, as far as MemoryBackend says. The daemon owns it. Slabs may outlive it.
class CudaMemory final : public MemoryBackend {
 public:
  // Errors: DEVICE_FAILED, NO_MEMORY for the staging memory.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(std::shared_ptr<CudaDevice> device,
                                                            CudaMemoryOptions options);

  // Usage() counts whole allocations. Besides the budget, the GPU's free memory limits Allocate.
  std::vector<HandleKind> kinds() const override {
    if (!source_->info().no_descriptors.empty()) return {HandleKind::kCudaIpc};
    return {HandleKind::kVmmFd, HandleKind::kCudaIpc};
  }
  using SlabAllocator::Allocate;
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended,
                                                 HandleKind kind) override;
  void ReleaseStaging(Slab& slab) override;
  absl::Status Seal(Slab& slab) override;
  absl::StatusOr<SlabHandle> Export(Slab& slab, AttachMode mode) override;
  void TransferOwnership(std::unique_ptr<Slab> slab) override;
  absl::StatusOr<KeptSlab> Keep(Slab& slab) override;
  absl::StatusOr<std::unique_ptr<Slab>> Adopt(KeptSlab kept) override;
  void OnWriterRestart() override {}
  // The result must not outlive this object.
  absl::StatusOr<std::unique_ptr<TransitMemory>> MakeTransit() override;
  std::vector<uint64_t> OwnedSegments() const override;
  MemoryUsage Usage() const override;
  std::string tier() const override;
  std::string device() const override { return source_->info().uuid; }
  absl::Status Health() const override { return CudaFailure(); }

  // The GPU. Its context exists as long as the result. Errors: DEVICE_FAILED.
  absl::StatusOr<std::shared_ptr<CudaDevice>> Device() const;
  // A descriptor of a segment, for a daemon of the same group on this host. Errors: NotFound if
  // this backend does not own it; FailedPrecondition HANDLE_KIND if it has no descriptor
  // (kCudaIpc).
  absl::StatusOr<UniqueFd> SegmentFd(uint64_t segment_id) const;
  // A peer's slab on this host, for writing. `fd` came from the peer's SegmentFd; `bytes` is its
  // size. Errors: NO_DEVICE if this process does not see that GPU, and those of
  // CudaAllocation::Import.
  absl::StatusOr<std::shared_ptr<StagedMemory>> ImportPeer(const std::string& device_uuid,
                                                           const UniqueFd& fd, uint64_t bytes);

 private:
  struct Ledger;  // shared by this backend and its slabs

  CudaMemory(std::shared_ptr<CudaEngineSource> source, bool has_kernels,
             const CudaMemoryOptions& options);
  // `bytes`: the size of a whole allocation.
  absl::Status CheckRoom(CudaDevice& device, uint64_t bytes) const;

  friend class CudaSlab;
  const std::shared_ptr<CudaEngineSource> source_;
  const bool has_kernels_;
  const uint64_t budget_;
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_
