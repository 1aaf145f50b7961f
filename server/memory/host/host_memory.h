// Host memory behind the seam of server/memory: slabs are rows of memfd segments
// from an arena (see arena.h) that clients map without a copy.
//
// SHARED and PRIVATE clients get read-only descriptors of sealed segments: none
// of them can change what another one sees, and none can make a reader fault.
// EXCLUSIVE clients get read-write descriptors of segments that were never sealed
// and never handed out; only their size is sealed, so a truncation by the client
// cannot hurt this daemon or its peers while they still map the memory. Memory
// handed out read-write is never used again here, even when GiveUp was not
// reached: its content and its further seals are the client's.
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

// Thread-safe, as far as MemoryBackend says. Slabs may outlive it.
class HostMemory final : public MemoryBackend, public ReadyMemory {
 public:
  // InvalidArgument CONFIG_INVALID for options that cannot be.
  static absl::StatusOr<std::unique_ptr<HostMemory>> Create(HostMemoryOptions options);
  ~HostMemory() override;

  // Sizes in Usage() are those of whole segments: what the system has given.
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
  void OnWriterRestart() override;
  std::vector<uint64_t> OwnedSegments() const override;
  MemoryUsage Usage() const override;
  std::string tier() const override;

  // A duplicate of a segment's original descriptor, for a daemon of our group on
  // this host: its mappings do not count as clients, and stay writable when made
  // before the seal. NotFound when we do not own the segment.
  absl::StatusOr<UniqueFd> OriginalFd(uint64_t segment_id) const;

  // Waits for the background fill: true when the arena has its target size.
  bool WaitUntilFilled(std::chrono::steady_clock::time_point deadline);

 private:
  explicit HostMemory(std::shared_ptr<Arena> arena) : arena_(std::move(arena)) {}

  std::shared_ptr<Arena> arena_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_HOST_MEMORY_H_
