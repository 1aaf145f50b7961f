// A source whose data stays where it is, in the memory of another process. That process
// holds a sealed memfd which says where; its path is /proc/PID/fd/N. Little-endian:
//
//   "CKPTDMEM", u64 number of ranges, of each range u64 address and u64 bytes,
//   then a safetensors header. The data is not in the file, which only has the length
//   as if: the ranges follow the header, one behind the other.
//
// The first bytes make it no safetensors file, so that whoever does not know this format
// refuses it instead of reading the hole.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_PROCESS_MEMORY_H_
#define CKPTD_COMMON_SOURCE_STORAGE_PROCESS_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/source/storage/posix.h"

namespace ckptd {

// Far above any state dict.
inline constexpr uint64_t kMaxMemoryRanges = 1'000'000;

// Whether `fd` is memory that nobody can change or cut any more: an offer, or a copy of what one
// would offer. Files of folders are never sealed so.
bool IsSealedMemory(int fd);

// Takes such a file where the process itself must have made it: nobody can have this daemon read
// memory of a process that did not offer it. Any other file is one of PosixStorage; only below
// /proc may one begin as these do.
//
// Errors of Open beside PosixStorage's: DataLoss SOURCE_INVALID for a file that is not as said
// above, PermissionDenied SOURCE_UNREADABLE for memory that this user may not read. Of ReadAt:
// DataLoss SOURCE_CHANGED when the process has ended, Unavailable SOURCE_UNREADABLE when it has
// unmapped the bytes.
class ProcessMemoryStorage final : public PosixStorage {
 public:
  absl::StatusOr<std::shared_ptr<const ReadableObject>> Open(
      const std::string& path) const override;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_PROCESS_MEMORY_H_
