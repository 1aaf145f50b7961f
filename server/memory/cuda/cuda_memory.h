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
  // As CudaEngine::Options has them.
  uint64_t staging_bytes = CudaEngine::Options().staging_bytes;
  std::span<const std::byte> kernels = {};
  // Between loads: false gives all back that the slabs do without, which the next load (or
  // verification) then starts anew. Slabs for kCudaIpc do not do without.
  bool keep_engine = true;
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
  void OnWriterRestart() override {}
  // It must not outlive this.
  absl::StatusOr<std::unique_ptr<TransitMemory>> MakeTransit() override;
  std::vector<uint64_t> OwnedSegments() const override;
  MemoryUsage Usage() const override;
  std::string tier() const override;
  std::string device() const override { return source_->info().uuid; }
  absl::Status Health() const override { return CudaFailure(); }

  // The GPU. Whoever keeps it keeps its context. Errors: DEVICE_FAILED.
  absl::StatusOr<std::shared_ptr<CudaDevice>> Device() const;
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

  CudaMemory(std::shared_ptr<CudaEngineSource> source, bool has_kernels,
             const CudaMemoryOptions& options);
  // `bytes`: of a whole allocation.
  absl::Status CheckRoom(CudaDevice& device, uint64_t bytes) const;

  friend class CudaSlab;
  const std::shared_ptr<CudaEngineSource> source_;
  const bool has_kernels_;
  const uint64_t budget_;
  const std::shared_ptr<Books> books_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_MEMORY_H_
