#include "server/memory/cuda/cuda_transit.h"

#include <atomic>
#include <utility>

#include "common/base/status.h"
#include "server/memory/cuda/cuda_bytes.h"

namespace ckptd {
namespace {

// A window of a slab: its address is where the slab's first byte would be.
class CudaView final : public CudaBytes {
 public:
  CudaView(std::shared_ptr<CudaEngine> engine, uint64_t bytes)
      : CudaBytes(engine, engine->home()), bytes_(bytes) {}

  uint64_t bytes() const override { return bytes_; }
  uint64_t address() const override { return address_.load(std::memory_order_acquire); }
  // Unsigned arithmetic: the address may lie before the memory, the window does not.
  void SetAddress(uint64_t address) { address_.store(address, std::memory_order_release); }

 private:
  const uint64_t bytes_;
  std::atomic<uint64_t> address_ = 0;
};

}  // namespace

absl::Status CudaTransit::Reserve(uint64_t bytes) {
  if (slab_ == nullptr || slab_->bytes() < bytes) {
    slab_.reset();  // freed first, so that old and new memory need not fit together
    CKPTD_ASSIGN_OR_RETURN(slab_, allocate_(bytes));
  }
  // Padding between tensors is sent as well, so it must not show old content.
  const SlabSpan all = {0, bytes};
  return slab_->view().staged->Zero({&all, 1});
}

std::shared_ptr<StagedMemory> CudaTransit::NewView(uint64_t slab_bytes) {
  return std::make_shared<CudaView>(engine_, slab_bytes);
}

void CudaTransit::MapWindow(StagedMemory& view, uint64_t begin, uint64_t at) {
  static_cast<CudaView&>(view).SetAddress(slab_->view().staged->address() + at - begin);
}

}  // namespace ckptd
