// Device memory that slabs of other ranks pass through, a part of each at a time.
#ifndef CKPTD_SERVER_MEMORY_TRANSIT_H_
#define CKPTD_SERVER_MEMORY_TRANSIT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "server/memory/slab_view.h"

namespace ckptd {

// Not thread-safe, but for lanes that write what views show.
class TransitMemory {
 public:
  virtual ~TransitMemory() = default;
  // At least so many bytes, all zero; what was in it is gone. Nobody writes it meanwhile.
  // Errors: ResourceExhausted NO_MEMORY, DEVICE_FAILED.
  virtual absl::Status Reserve(uint64_t bytes) = 0;
  // A slab of `slab_bytes` of which nothing is here. Its offsets outside of what Show says
  // are nowhere: neither write nor send them. Of no use after this object.
  virtual std::shared_ptr<StagedMemory> NewView(uint64_t slab_bytes) = 0;
  // From now on the slab's byte `begin` is byte `at` of what was reserved, and those after it
  // follow. `view` is one of NewView.
  virtual void MapWindow(StagedMemory& view, uint64_t begin, uint64_t at) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_TRANSIT_H_
