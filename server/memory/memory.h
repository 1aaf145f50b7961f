// Seam: the memory of shards, and how it is handed to clients. Backends: server/memory/host
// (memfd segments), server/memory/cuda (device memory). One contract suite (tests/contract) runs
// on every backend.
#ifndef CKPTD_SERVER_MEMORY_MEMORY_H_
#define CKPTD_SERVER_MEMORY_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/attach_mode.h"
#include "common/base/handle_kind.h"
#include "common/base/posix.h"
#include "server/memory/slab_view.h"
#include "server/memory/transit.h"

namespace ckptd {

// One piece of a slab. A slab's segments lie back to back.
struct Segment {
  uint64_t id = 0;     // unique for the life of this backend
  // At most the size of the memory behind it. In device memory always all of it.
  uint64_t bytes = 0;
};

// One allocation for one (checkpoint, rank). The caller of Allocate owns it; destruction gives
// the memory back to the backend. Not thread-safe, except that different threads may write
// different bytes of its segments.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual uint64_t bytes() const = 0;
  virtual const std::vector<Segment>& segments() const = 0;
  // Writable while the slab lives.
  virtual SlabView view() = 0;
  virtual HandleKind kind() const = 0;
  // kCudaIpc: the 64 bytes with which another process opens the slab while it lives.
  virtual std::string ipc_handle() const { return {}; }
};

struct MemoryUsage {
  uint64_t budget = 0;
  uint64_t used = 0;          // in slabs
  uint64_t arena = 0;         // faulted in, used or free
  uint64_t arena_target = 0;  // size that the background fill aims for
  uint64_t huge_pages = 0;    // part of the arena
  uint64_t lingering = 0;     // dropped, but a client still maps it; 0 if the backend cannot tell
  uint64_t staging = 0;       // host memory through which bytes for a device pass
};

// What a client needs to map a slab. Either fresh descriptors, one per segment, which this value
// owns, or the slab's ipc_handle, which owns nothing.
struct SlabHandle {
  HandleKind kind = HandleKind::kMemfd;
  std::string device = {};  // UUID of the GPU; empty: host memory
  std::vector<UniqueFd> fds;
  std::string ipc_handle = {};  // kCudaIpc
  std::vector<uint64_t> segment_bytes;
  bool writable = false;
};

// A slab of which only descriptors are left. A later process makes it a slab again.
struct KeptSlab {
  HandleKind kind = HandleKind::kMemfd;
  std::string device = {};  // UUID of the GPU; empty: host memory
  uint64_t bytes = 0;
  bool sealed = false;
  std::vector<uint64_t> segment_bytes = {};
  std::vector<UniqueFd> fds = {};  // one per segment
};

// The memory of shards: allocate, seal, hand out, give up. Thread-safe.
class SlabAllocator {
 public:
  virtual ~SlabAllocator() = default;
  // How this memory can be handed out; the kind that it prefers is first.
  virtual std::vector<HandleKind> kinds() const = 0;
  // Memory for `bytes` > 0, to be handed out as `kind`, one of kinds(). Its content is
  // unspecified (see ZeroPadding of transfer.h); the rest of the last segment is zero. kExclusive
  // takes only memory that was never handed out. Errors: ResourceExhausted NO_MEMORY with the
  // numbers (asked, free, budget), or with host_bytes if device memory needs host memory, which
  // no eviction can free; DeadlineExceeded DEADLINE if other daemons keep it waiting.
  virtual absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended,
                                                         HandleKind kind) = 0;
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended) {
    return Allocate(bytes, intended, kinds().front());
  }
  // The slab is complete, and nobody fills it any more: what only filling needs may go. Its view
  // can still be read.
  virtual void ReleaseStaging(Slab& slab) { (void)slab; }
  // Makes the slab immutable for clients. Call it before the first Export with kShared or
  // kPrivate. Idempotent.
  virtual absl::Status Seal(Slab& slab) = 0;
  // Handles for a client. kExclusive requires a slab that is not sealed and not of kind kCudaIpc.
  // Errors: FailedPrecondition HANDLE_KIND. A kCudaIpc slab must outlive what clients open; other
  // slabs need not.
  virtual absl::StatusOr<SlabHandle> Export(Slab& slab, AttachMode mode) = 0;
  // The memory now belongs to a client: it leaves the budget and is never reused. The slab is
  // consumed.
  virtual void TransferOwnership(std::unique_ptr<Slab> slab) = 0;
  // What a later process of this daemon needs to have the slab back. It is no client's: memory may
  // be used again while it exists, so it must be dropped before. Errors: FailedPrecondition
  // HANDLE_KIND for memory that ends with this process.
  virtual absl::StatusOr<KeptSlab> Keep(Slab& slab) {
    (void)slab;
    return absl::UnimplementedError("keeping a slab: this memory ends with its process");
  }
  // The slab of which an earlier process gave this out. Counts in the budget. Its content is to be
  // checked. Errors: NO_MEMORY, DataLoss DIGEST_MISMATCH for descriptors of other memory,
  // FailedPrecondition NO_DEVICE for another GPU's.
  virtual absl::StatusOr<std::unique_ptr<Slab>> Adopt(KeptSlab kept) {
    (void)kept;
    return absl::UnimplementedError("taking a slab over: this memory ends with its process");
  }
  // The leader has restarted, so another process now fills our slabs. It cannot map sealed memory
  // for writing, so memory sealed before this call is never reused.
  virtual void OnWriterRestart() = 0;
  // Ids of all segments this allocator still owns.
  virtual std::vector<uint64_t> OwnedSegments() const = 0;
  virtual MemoryUsage Usage() const = 0;
};

// Memory of a device that only passes slabs of other ranks on. Thread-safe.
class TransitAllocator {
 public:
  virtual ~TransitAllocator() = default;
  // It counts to the budget of its device. Errors: FailedPrecondition where slabs are not in a
  // device's memory.
  virtual absl::StatusOr<std::unique_ptr<TransitMemory>> MakeTransit() {
    return absl::FailedPreconditionError("making transit memory: slabs are not in device memory");
  }
};

// What the memory is, and whether it works. Thread-safe.
class MemoryHealth {
 public:
  virtual ~MemoryHealth() = default;
  // "host" or "cuda", and its main facts, for people.
  virtual std::string tier() const = 0;
  // UUID of the GPU that has the memory. Empty: host memory.
  virtual std::string device() const { return ""; }
  // An error if this process must be restarted before it can allocate or fill memory.
  virtual absl::Status Health() const { return absl::OkStatus(); }
};

// One kind of memory, as the daemon picks it at its start (daemon/memory_tier.h). Parts that need
// less take one of the three.
class MemoryBackend : public SlabAllocator, public TransitAllocator, public MemoryHealth {};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_MEMORY_H_
