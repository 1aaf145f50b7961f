// Memory of a GPU through which bytes for other ranks pass.
#ifndef CKPTD_SERVER_MEMORY_CUDA_CUDA_TRANSIT_H_
#define CKPTD_SERVER_MEMORY_CUDA_CUDA_TRANSIT_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "server/memory/cuda/cuda_engine.h"
#include "server/memory/memory.h"
#include "server/memory/transit.h"

namespace ckptd {

class CudaTransit final : public TransitMemory {
 public:
  // Allocates a slab on the engine's home GPU.
  using Allocate = std::function<absl::StatusOr<std::unique_ptr<Slab>>(uint64_t bytes)>;
  CudaTransit(std::shared_ptr<CudaEngine> engine, Allocate allocate)
      : engine_(std::move(engine)), allocate_(std::move(allocate)) {}

  absl::Status Reserve(uint64_t bytes) override;
  std::shared_ptr<StagedMemory> NewView(uint64_t slab_bytes) override;
  void MapWindow(StagedMemory& view, uint64_t begin, uint64_t at) override;

 private:
  const std::shared_ptr<CudaEngine> engine_;
  const Allocate allocate_;
  std::shared_ptr<Slab> slab_;  // null: nothing was reserved yet
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_CUDA_CUDA_TRANSIT_H_
