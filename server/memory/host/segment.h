// One memfd with this process's writable mapping of it: what slabs are made of.
//
// Three descriptors have three jobs. The *original* one (of memfd_create) carries
// our mapping and is what trusted daemons get duplicates of; the *check* one,
// re-opened read-write, is used for nothing but HeldByOthers; what clients get is
// re-opened afresh for every export. The kernel counts re-opened descriptors and
// mappings made from them, and does not count the original and its duplicates:
// so the check sees clients and only clients.
//
// The size is sealed at creation (no process can shrink the file under a mapping,
// so nobody gets SIGBUS, not even from the owner of an EXCLUSIVE shard). Contents
// are sealed by Seal, for all later writers but not for mappings made before.
#ifndef CKPTD_SERVER_MEMORY_HOST_SEGMENT_H_
#define CKPTD_SERVER_MEMORY_HOST_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "server/memory/host/populate.h"

namespace ckptd {

// Not thread-safe; its owner is a slab or the arena, and the arena's lock guards
// what several threads ask.
class HostSegment {
 public:
  // Memory of `bytes` zeros, a multiple of kHugePageBytes, all of it present:
  // writing it cannot fail later. ResourceExhausted NO_MEMORY when the system
  // does not have it; nothing is kept then.
  static absl::StatusOr<std::unique_ptr<HostSegment>> Create(uint64_t id, uint64_t bytes,
                                                             const PopulateOptions& options);

  uint64_t id() const { return id_; }
  uint64_t bytes() const { return mapping_.bytes(); }
  std::byte* data() const { return mapping_.data(); }
  // How much of it huge pages hold.
  uint64_t huge_bytes() const { return huge_bytes_; }

  // From now on no client can write, whatever descriptor it gets. Our mapping,
  // and those of trusted daemons made before, stay writable. Idempotent.
  absl::Status Seal();
  bool sealed() const { return sealed_; }

  // Fresh descriptors for a client: read-only ones only when sealed (else it
  // could re-open them for writing), read-write ones only when not.
  absl::StatusOr<UniqueFd> OpenReadOnly() const;
  absl::StatusOr<UniqueFd> OpenReadWrite() const;
  // A duplicate of the original descriptor, for daemons of the same group.
  absl::StatusOr<UniqueFd> DuplicateOriginal() const;

  // Whether any process, this one included, still has a descriptor from
  // OpenReadOnly or OpenReadWrite, one on its way, or a mapping made from one.
  // Also true when the kernel does not say. No signal is raised, no state kept.
  bool HeldByOthers() const;

 private:
  HostSegment(uint64_t id, UniqueFd original, UniqueFd check, Mapping mapping)
      : id_(id),
        original_(std::move(original)),
        check_(std::move(check)),
        mapping_(std::move(mapping)) {}

  uint64_t id_;
  UniqueFd original_;
  UniqueFd check_;
  Mapping mapping_;
  uint64_t huge_bytes_ = 0;
  bool sealed_ = false;
};

// Whether HeldByOthers tells the truth on this kernel: tries it on a page of
// memory, with a descriptor and with a mapping. Without it, memory that was
// handed out must never be used again.
bool OwnershipCheckWorks();

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_SEGMENT_H_
