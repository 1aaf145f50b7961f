// Host memory behind the seam of server/memory. Slabs are rows of memfd segments from an arena
// (see arena.h) that clients map without a copy.
//
// SHARED and PRIVATE clients get read-only descriptors of sealed segments: no client can change
// what another one sees, and none can make a reader fault. EXCLUSIVE clients get read-write
// descriptors of segments that were never sealed and never handed out. Only their size is sealed,
// so a truncation by the client cannot hurt this daemon or its peers while they still map the
// memory. Memory handed out read-write is never used again here, because its content and its
// further seals are the client's.
#ifndef CKPTD_SERVER_MEMORY_HOST_HOST_MEMORY_H_
#define CKPTD_SERVER_MEMORY_HOST_HOST_MEMORY_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "server/memory/host/arena.h"
#include "server/memory/memory.h"
#include "server/memory/ready_memory.h"

namespace ckptd {

// Thread-safe, as far as MemoryBackend says. The daemon owns it. Slabs may outlive it.
class HostMemory final : public MemoryBackend, public ReadyMemory {
 public:
  // Errors: InvalidArgument CONFIG_INVALID for impossible options.
  static absl::StatusOr<std::unique_ptr<HostMemory>> Create(HostMemoryOptions options);
  ~HostMemory() override;

  // Usage() counts whole segments, as the system does.
  std::vector<HandleKind> kinds() const override { return {HandleKind::kMemfd}; }
  using SlabAllocator::Allocate;
  absl::StatusOr<std::unique_ptr<Slab>> Allocate(uint64_t bytes, AttachMode intended,
                                                 HandleKind kind) override;
  absl::Status Seal(Slab& slab) override;
  absl::StatusOr<SlabHandle> Export(Slab& slab, AttachMode mode) override;
  void TransferOwnership(std::unique_ptr<Slab> slab) override;
  void ReleaseStaging(Slab& slab) override;
  void Expect(uint64_t bytes, const std::string& why) override { arena_->Expect(bytes, why); }
  uint64_t Trim() override { return arena_->Trim(); }
  std::string Why() const override { return arena_->Why(); }
  absl::StatusOr<KeptSlab> Keep(Slab& slab) override;
  absl::StatusOr<std::unique_ptr<Slab>> Adopt(KeptSlab kept) override;
  void OnWriterRestart() override;
  std::vector<uint64_t> OwnedSegments() const override;
  MemoryUsage Usage() const override;
  std::string tier() const override;

  // A duplicate of a segment's original descriptor, for a daemon of the same group on this host.
  // Its mappings do not count as clients, and stay writable if they were made before the seal.
  // NotFound if this backend does not own the segment.
  absl::StatusOr<UniqueFd> OriginalFd(uint64_t segment_id) const;

  // Waits for the background fill. True if the arena has its target size.
  bool WaitUntilFilled(std::chrono::steady_clock::time_point deadline);

 private:
  explicit HostMemory(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  std::shared_ptr<Arena> arena_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_HOST_MEMORY_H_
