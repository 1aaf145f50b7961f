// Seam: memory that a backend keeps ready for slabs to come, because it was made ahead or because
// earlier slabs left it. Backends: server/memory/host (its arena).
#ifndef CKPTD_SERVER_MEMORY_READY_MEMORY_H_
#define CKPTD_SERVER_MEMORY_READY_MEMORY_H_

#include <cstdint>
#include <string>

namespace ckptd {

// Thread-safe.
class ReadyMemory {
 public:
  virtual ~ReadyMemory() = default;
  // A slab of `bytes` is to be allocated soon: memory for it is made ahead, within the budget,
  // unless a size was set. `why` is for people. Does not block.
  virtual void Expect(uint64_t bytes, const std::string& why) = 0;
  // Gives what is in no slab back to the system: its bytes. No other is made ahead until
  // something is loaded. Blocks for as long as the system takes.
  virtual uint64_t Trim() = 0;
  // Why as much is kept ready as MemoryUsage::arena_target says, for people.
  virtual std::string Why() const = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_READY_MEMORY_H_
