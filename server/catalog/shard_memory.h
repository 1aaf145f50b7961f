// The slab of a loaded shard, shared between the catalog and whoever is using it
// right now (an acquire, a verification). Thread-safe. It outlives who Reads it.
#ifndef CKPTD_SERVER_CATALOG_SHARD_MEMORY_H_
#define CKPTD_SERVER_CATALOG_SHARD_MEMORY_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/memory/memory.h"

namespace ckptd {

class ShardMemory {
 public:
  // `slab` may be null: a rank that receives nothing. `kind` is the slab's.
  ShardMemory(SlabAllocator& backend, std::unique_ptr<Slab> slab, HandleKind kind)
      : backend_(backend), kind_(kind), slab_(std::move(slab)) {}
  ~ShardMemory() { StopKeeping(); }
  ShardMemory(const ShardMemory&) = delete;
  ShardMemory& operator=(const ShardMemory&) = delete;

  // Nobody writes it any more; see SlabAllocator.
  void ReleaseStaging();
  // What fills it lives until then, or ends with the memory: staging memory, too, is for loads
  // that go on.
  void FilledBy(std::shared_ptr<void> filler);
  // Immutable for clients from now on. Idempotent.
  absl::Status Seal();
  bool sealed() const;
  // Descriptors for a client. SHARED and PRIVATE seal first; EXCLUSIVE on sealed
  // memory is FailedPrecondition EXCLUSIVE_NEEDS_COPY. No memory: no descriptors.
  absl::StatusOr<SlabHandle> Export(AttachMode mode);
  // As SlabAllocator::Keep. No memory: no descriptors.
  absl::StatusOr<KeptSlab> Keep();
  // Called once, without a lock, before the memory can be used for anything else: also before it is
  // handed over EXCLUSIVE. Replaces an earlier one.
  void SetBeforeReuse(std::function<void()> before_reuse);
  // Calls that now. Idempotent.
  void StopKeeping();
  // The memory belongs to a client now. It is let go of when nobody Reads it any more.
  void TransferOwnership();
  // Writable view for the load worker, which fills it before anybody can take it; empty
  // after GiveUp.
  SlabView View() const;
  // A view that stays valid for as long as it is held; null after GiveUp. Whether the bytes
  // were this shard's until the end, GivenUp says then.
  std::shared_ptr<const SlabView> Read();
  bool GivenUp() const;
  std::vector<Segment> Segments() const;
  HandleKind kind() const { return kind_; }
  std::string ipc_handle() const;  // the slab's

 private:
  absl::Status SealLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndRead();
  Slab* slab() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return given_up_ ? nullptr : slab_.get();
  }

  SlabAllocator& backend_;
  const HandleKind kind_;
  mutable Mutex mutex_;
  std::unique_ptr<Slab> slab_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<void> filler_ ABSL_GUARDED_BY(mutex_);  // goes before the slab
  bool sealed_ ABSL_GUARDED_BY(mutex_) = false;
  bool given_up_ ABSL_GUARDED_BY(mutex_) = false;
  unsigned readers_ ABSL_GUARDED_BY(mutex_) = 0;
  std::function<void()> before_reuse_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_SHARD_MEMORY_H_
