// One memfd with this process's writable mapping of it. Slabs are made of these.
//
// There are three kinds of descriptors. The *original* one (of memfd_create) carries our mapping;
// trusted daemons get duplicates of it. The *check* one, re-opened read-write, is used only by
// HeldByOthers. Clients get descriptors that are re-opened for every export. The kernel counts
// re-opened descriptors and mappings made from them, but not the original and its duplicates. So
// the check sees clients and only clients.
//
// A segment may be a file in a memory-backed folder instead, which other names of the same file
// outlive (server/keeper/slab_folder.h). There the original is an ordinary descriptor: its one open
// file description serves for the mapping and the check. The kernel seals no such file. Only this
// process's user (and root) could shorten it or write to it against its mode.
//
// The size is sealed at creation: no process can shrink the file under a mapping, so nobody gets
// SIGBUS, not even from the owner of an EXCLUSIVE shard. Seal seals the contents against all
// later writers, but not against mappings made before.
#ifndef CKPTD_SERVER_MEMORY_HOST_SEGMENT_H_
#define CKPTD_SERVER_MEMORY_HOST_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/base/slab_mapping.h"
#include "server/memory/host/populate.h"

namespace ckptd {

// Not thread-safe. A slab or the arena owns it. The arena's lock guards what several threads ask.
class HostSegment {
 public:
  // Memory of `bytes` zeros, a multiple of kHugePageBytes. All of it is present, so writing it
  // cannot fail later. ResourceExhausted NO_MEMORY if the system does not have it; nothing is
  // kept then.
  // Not empty `folder`: a file there, whose name goes when this is destroyed.
  static absl::StatusOr<std::unique_ptr<HostSegment>> Create(uint64_t id, uint64_t bytes,
                                                             const PopulateOptions& options,
                                                             const std::string& folder = "");

  // Memory that an earlier process made and of which `original` is a duplicate, at least `bytes`.
  // Sealed memory can be mapped for reading only, so it must never be filled again. A file of
  // `folder` gets a name of its own there. Errors: DataLoss DIGEST_MISMATCH if it is not such memory.
  static absl::StatusOr<std::unique_ptr<HostSegment>> Adopt(uint64_t id, uint64_t bytes,
                                                            UniqueFd original,
                                                            const std::string& folder = "");
  ~HostSegment();
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  uint64_t id() const { return id_; }
  uint64_t bytes() const { return mapping_.bytes(); }
  std::byte* data() const { return mapping_.data(); }
  // Bytes of it that are in huge pages.
  uint64_t huge_bytes() const { return huge_bytes_; }

  // After this no client can write, whatever descriptor it gets. Our mapping, and earlier ones of
  // trusted daemons, stay writable. Idempotent.
  absl::Status Seal();
  bool sealed() const { return sealed_; }

  // Fresh descriptors for a client. Read-only ones require a sealed segment (a client could
  // re-open them for writing), read-write ones an unsealed one.
  absl::StatusOr<UniqueFd> OpenReadOnly() const;
  absl::StatusOr<UniqueFd> OpenReadWrite() const;
  // A duplicate of the original descriptor, for daemons of the same group.
  absl::StatusOr<UniqueFd> DuplicateOriginal() const;

  // Whether any process, even this one, still has a descriptor from OpenReadOnly or
  // OpenReadWrite, one in a message, or a mapping made from one. Also true if the kernel does not
  // say. Raises no signal and keeps no state.
  bool HeldByOthers() const;

 private:
  explicit HostSegment(uint64_t id) : id_(id) {}
  absl::Status OpenCheck();
  absl::Status Map(uint64_t bytes, MapMode mode);

  uint64_t id_;
  UniqueFd original_;
  UniqueFd check_;
  Mapping mapping_;
  uint64_t huge_bytes_ = 0;
  bool sealed_ = false;
  std::string path_;  // empty: it is no file
};

// Whether HeldByOthers is right on this kernel. Tries it on a page of memory, with a descriptor
// and with a mapping. If not, memory that was handed out must never be used again.
bool OwnershipCheckWorks(const std::string& folder = "");

}  // namespace ckptd

#endif  // CKPTD_SERVER_MEMORY_HOST_SEGMENT_H_
