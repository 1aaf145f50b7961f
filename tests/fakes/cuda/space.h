// The device's address space in this process. Device addresses are addresses
// of the process: the fake's device sees memory through the same mappings.
#ifndef CKPTD_TESTS_FAKES_CUDA_SPACE_H_
#define CKPTD_TESTS_FAKES_CUDA_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "tests/fakes/cuda/driver_api.h"
#include "tests/fakes/cuda/store.h"

namespace ckptd::fake_cuda {

// Like today's GPUs (reference, section 2.1).
constexpr std::size_t kGranularity = std::size_t{2} << 20;

using Address = std::uintptr_t;

enum class BlockKind {
  kDevice,      // cuMemAlloc
  kImported,    // cuIpcOpenMemHandle
  kPinned,      // cuMemHostAlloc
  kRegistered,  // cuMemHostRegister
};

struct Block {
  BlockKind kind = BlockKind::kDevice;
  std::size_t bytes = 0;  // as asked for; copies may not go beyond
  int device = 0;
  MemoryPtr memory;          // of device and imported blocks
  unsigned opens = 1;        // cuIpcOpenMemHandle counts
  bool read_only = false;    // registered as read-only for devices
  std::uint64_t serial = 0;  // never the same again (CU_POINTER_ATTRIBUTE_BUFFER_ID)
};

// cuMemMap.
struct Mapping {
  std::size_t bytes = 0;
  MemoryPtr memory;
  std::vector<CUmemAccess_flags> access;  // per visible device
  std::uint64_t serial = 0;
};

enum class Reach {
  kGood,
  kUnknown,  // not wholly inside known memory
  kFault,    // known, and this device may not do that
};

// Not thread-safe: used under the driver's lock.
class Space {
 public:
  // PROT_NONE, never address space that was used before unless `hint` says so:
  // whoever touches freed memory is found. 0: no such range.
  Address Reserve(std::size_t bytes, std::size_t alignment, Address hint);
  // Makes the range inaccessible and remembers that it was freed.
  void Retire(Address address, std::size_t bytes);
  bool WasFreed(Address address) const;

  // Shows `memory` at an address inside a reservation of ours.
  static bool Show(const Memory& memory, Address address, std::size_t bytes, int protection);

  // The block or mapping that holds an address; null: none.
  const std::pair<const Address, Block>* BlockAt(Address address) const;
  const std::pair<const Address, Mapping>* MappingAt(Address address) const;
  // Whether pinned memory of ours holds all of the range.
  bool Pinned(Address address, std::size_t bytes) const;
  // Whether the address is the device's: anything else is the host's.
  bool OnDevice(Address address) const;
  // May `device` read or write the range?
  Reach Check(Address address, std::size_t bytes, int device, bool write) const;
  // Whether [address, address + bytes) touches a mapping; all of it is mapped.
  bool AnyMapped(Address address, std::size_t bytes) const;
  bool AllMapped(Address address, std::size_t bytes) const;

  std::map<Address, Block> blocks;
  std::map<Address, Mapping> mappings;
  std::map<Address, std::size_t> reservations;
  std::uint64_t next_serial = 1;

 private:
  std::map<Address, Address> freed_;  // first -> one past the last
};

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_SPACE_H_
