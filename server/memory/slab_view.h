// How a process reaches the bytes of a slab: by address, or, where only a driver
// reaches them (device memory), by copies through staging memory.
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

// Where staged bytes belong.
struct StagedPlace {
  StagedMemory* memory = nullptr;
  uint64_t offset = 0;
};

// One thread's way to write staged memory: what it is given to fill is copied behind
// its back. Not thread-safe; several lanes work side by side.
class StagingLane {
 public:
  // Waits for its copies, at most as long as Finish.
  virtual ~StagingLane() = default;
  // Room for bytes that belong `into` bytes behind each of these places, one or more:
  // written once, whichever devices fetch them. At least one byte and at most `bytes` > 0.
  // Write all of it before the next call on this lane. Once a device has failed, it is
  // room for nothing: Finish says why.
  virtual std::span<std::byte> Stage(std::span<const StagedPlace> places, uint64_t into,
                                     uint64_t bytes) = 0;

  // Whether the device of `memory` can take what belongs to it out of blocks of source
  // bytes: strided, or cast. If not, Stage is the way.
  virtual bool TakesBlocks(const StagedMemory& memory) const = 0;
  // Room for the source bytes [begin, begin + bytes), bytes <= kMostBlockBytes. Write all
  // of it before the next call on this lane. Empty once the device has failed.
  static constexpr size_t kMostBlockBytes = 1 << 20;
  virtual std::span<std::byte> StageBlock(uint64_t begin, size_t bytes) = 0;
  // What `copy`, whose target is an offset in `memory`, takes from the block staged last,
  // which must not cut an element that is cast. Finish says what is wrong with it.
  virtual void Take(StagedMemory& memory, const BlockCopy& copy) = 0;

  // Returns when all that was staged is in place. Errors name the device: Unavailable
  // DEVICE_FAILED, DeadlineExceeded DEADLINE when it stands still.
  virtual absl::Status Finish() = 0;
  // What Finish will say for certain, as far as it is known: who goes on gains nothing.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

struct SlabSpan {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const SlabSpan&) const = default;
};

// A slab, or a peer's, in memory that is not written by address. Thread-safe, but for
// writing the same bytes at once.
class StagedMemory {
 public:
  virtual ~StagedMemory() = default;
  virtual uint64_t bytes() const = 0;
  // Lanes of one backend serve all its memory. Errors: as Finish, ResourceExhausted
  // NO_MEMORY without staging memory.
  virtual absl::StatusOr<std::unique_ptr<StagingLane>> OpenLane() = 0;
  // How many lanes have enough staging memory to seldom wait for it; at least one.
  virtual unsigned Lanes() const = 0;
  // Copies [offset, offset + out.size()) to `out`. What a lane staged shows after its
  // Finish.
  virtual absl::Status Read(uint64_t offset, std::span<std::byte> out) = 0;
  // Fills these with zeros, and waits for that. Errors: as Finish, Unimplemented where
  // nobody may.
  virtual absl::Status Zero(std::span<const SlabSpan> spans) {
    (void)spans;
    return absl::UnimplementedError("clearing a slab: this memory is not written");
  }
  // Where its device has offset 0, for a communicator of that device; 0: nowhere.
  virtual uint64_t address() const { return 0; }
};

// Writable bytes of one slab.
struct SlabView {
  // Back to back, kept alive by whoever made the view; empty when staged.
  std::vector<std::span<std::byte>> segments = {};
  std::shared_ptr<StagedMemory> staged = nullptr;

  bool empty() const { return segments.empty() && staged == nullptr; }
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_SLAB_VIEW_H_
