// Seam: memory that a backend keeps ready for future slabs, made ahead or left by earlier slabs.
// Backends: server/memory/host (its arena).
#ifndef CKPTD_SERVER_MEMORY_READY_MEMORY_H_
#define CKPTD_SERVER_MEMORY_READY_MEMORY_H_

#include <cstdint>
#include <string>

namespace ckptd {

// Implemented by the backend itself. Thread-safe.
class ReadyMemory {
 public:
  virtual ~ReadyMemory() = default;
  // A slab of `bytes` will be allocated soon. Memory for it is made ahead, within the budget,
  // unless a size was set. `why` is for people. Does not block.
  virtual void Expect(uint64_t bytes, const std::string& why) = 0;
  // Gives memory that is in no slab back to the system, and returns its bytes. No more is made
  // ahead until something is loaded. Blocks as long as the system takes.
  virtual uint64_t Trim() = 0;
  // The reason for MemoryUsage::arena_target, for people.
  virtual std::string Why() const = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_READY_MEMORY_H_
