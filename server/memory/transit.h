// Device memory through which slabs of other ranks pass, one window of each at a time.
#ifndef CKPTD_SERVER_MEMORY_TRANSIT_H_
#define CKPTD_SERVER_MEMORY_TRANSIT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// ScatterExchange owns it. Not thread-safe, except for lanes that write to the mapped windows.
class TransitMemory {
 public:
  virtual ~TransitMemory() = default;
  // Reserves at least `bytes`, all zero. Earlier content is lost. Nobody may write to it
  // meanwhile. Errors: ResourceExhausted NO_MEMORY, DEVICE_FAILED.
  virtual absl::Status Reserve(uint64_t bytes) = 0;
  // A slab of `slab_bytes` of which only the window of MapWindow exists. Neither write nor send
  // other offsets. Must not be used after this object has ended.
  virtual std::shared_ptr<StagedMemory> NewView(uint64_t slab_bytes) = 0;
  // From now on the slab's byte `begin` is byte `at` of the reserved memory, and the following
  // bytes follow. `view` must come from NewView.
  virtual void MapWindow(StagedMemory& view, uint64_t begin, uint64_t at) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_TRANSIT_H_
