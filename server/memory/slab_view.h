// How a process writes and reads the bytes of a slab: by address, or through staging memory if
// only a driver reaches them (device memory).
#ifndef CKPTD_SERVER_MEMORY_SLAB_VIEW_H_
#define CKPTD_SERVER_MEMORY_SLAB_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/memory/block_copy.h"

namespace ckptd {

class StagedMemory;

// A position in staged memory.
struct StagedPlace {
  StagedMemory* memory = nullptr;
  uint64_t offset = 0;
};

// One thread's access to staged memory for writing: the thread fills the room it gets, and the
// lane copies it to the device in the background. Not thread-safe. Several lanes may be used at
// the same time.
class StagingLane {
 public:
  // Waits for its copies, at most as long as Finish.
  virtual ~StagingLane() = default;
  // Room for bytes that belong `into` bytes after each of `places`, at least one. They are
  // written once, however many devices fetch them. Returns 1 to `bytes` > 0 bytes. Write all of
  // it before the next call on this lane. Once a device has failed, the bytes go nowhere and
  // Finish returns the error.
  virtual std::span<std::byte> Stage(std::span<const StagedPlace> places, uint64_t into,
                                     uint64_t bytes) = 0;

  // Whether the device of `memory` can copy its bytes out of blocks of source bytes, strided or
  // cast. If not, use Stage.
  virtual bool CanCopyFromBlocks(const StagedMemory& memory) const = 0;
  // Room for the source bytes [begin, begin + bytes), bytes <= kMaxBlockBytes. Write all of it
  // before the next call on this lane. Empty once the device has failed.
  static constexpr size_t kMaxBlockBytes = 1 << 20;
  virtual std::span<std::byte> StageBlock(uint64_t begin, size_t bytes) = 0;
  // Does `copy` from the block staged last, which must not cut an element that is cast. The
  // target of `copy` is an offset in `memory`. Finish returns the errors.
  virtual void CopyFromBlock(StagedMemory& memory, const BlockCopy& copy) = 0;

  // Returns when all staged bytes are in place. Errors name the device: Unavailable
  // DEVICE_FAILED, DeadlineExceeded DEADLINE if it has stalled.
  virtual absl::Status Finish() = 0;
  // The error that Finish will return, if it is known already. Lets callers stop early.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

struct SlabSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const SlabSpan&) const = default;
};

// A slab, or a peer's slab, in memory that cannot be written by address. Thread-safe, but two
// threads must not write the same bytes.
class StagedMemory {
 public:
  virtual ~StagedMemory() = default;
  virtual uint64_t bytes() const = 0;
  // Lanes of one backend serve all its memory. Errors: those of Finish, ResourceExhausted
  // NO_MEMORY without staging memory.
  virtual absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() = 0;
  // How many lanes have enough staging memory to seldom wait for it; at least one.
  virtual unsigned Lanes() const = 0;
  // Copies [offset, offset + out.size()) to `out`. Bytes that a lane staged are visible after its
  // Finish.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> out) = 0;
  // Fills these spans with zeros and waits for that. Errors: those of Finish, Unimplemented for
  // memory that may not be cleared.
  virtual absl::Status Zero(std::span<const SlabSpan> spans) {
    (void)spans;
    return absl::UnimplementedError("clearing a slab: this memory cannot be written");
  }
  // The device address of offset 0, for a communicator of that device. 0: it has none.
  virtual uint64_t address() const { return 0; }
};

// Writable bytes of one slab.
struct SlabView {
  // Back to back. The maker of the view keeps them alive, or `mapped` does. Empty if the slab is
  // staged.
  std::vector<std::span<std::byte>> segments = {};
  std::shared_ptr<StagedMemory> staged = nullptr;
  // Mappings of a peer's segments, for as long as the view is used.
  std::vector<std::shared_ptr<const void>> mapped = {};

  bool empty() const { return segments.empty() && staged == nullptr; }
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_SLAB_VIEW_H_
