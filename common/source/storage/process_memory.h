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

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// Far above any state dict.
inline constexpr uint64_t kMaxMemoryRanges = 1'000'000;

// Where in a process some of the data is.
struct MemoryRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the file
};

// The memory that one such file names. Immutable, thread-safe.
class ProcessMemory {
 public:
  // Whether a file begins as one of these does. Only below /proc may one be.
  static bool IsNamedBy(int fd, const std::string& path);

  // `fd` is the file, open. Takes it only where the process itself must have made it:
  // nobody can have this daemon read memory of a process that did not offer it.
  // Errors: DataLoss SOURCE_INVALID for a file that is not as said above, PermissionDenied
  // SOURCE_UNREADABLE for memory that this user may not read, with fact "file".
  static absl::StatusOr<ProcessMemory> Open(int fd, const std::string& path);

  // Offset in the file of the safetensors header, and of the first byte behind it.
  uint64_t header_at() const { return header_at_; }
  uint64_t data_at() const { return data_at_; }

  // Bytes of the data; `offset` is one in the file. Errors: DataLoss SOURCE_CHANGED when
  // the process has ended, Unavailable SOURCE_UNREADABLE when it has unmapped them.
  absl::Status Read(uint64_t offset, std::span<std::byte> out, const std::string& path) const;

 private:
  ProcessMemory() = default;
  absl::Status ReadRanges(int fd, const std::string& path, uint64_t file_bytes);
  // By their ends: devices' memory, among others, is not for other processes.
  absl::Status CheckReadable(const std::string& path, const std::string& process) const;

  UniqueFd memory_;  // of the process, whoever has its number later
  std::vector<MemoryRange> ranges_;
  uint64_t header_at_ = 0;
  uint64_t data_at_ = 0;
};

// A file of a source, open. Thread-safe.
struct OpenedFile {
  UniqueFd fd;
  std::optional<ProcessMemory> memory;

  // Errors of PreadFull, and of ProcessMemory::Read.
  absl::Status Read(uint64_t offset, std::span<std::byte> out, const std::string& path) const {
    return memory.has_value() ? memory->Read(offset, out, path)
                              : PreadFull(fd.get(), offset, out, path);
  }
};

// Errors: those of OpenForReading and of ProcessMemory::Open.
absl::StatusOr<OpenedFile> OpenSourceFile(const std::string& path);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_PROCESS_MEMORY_H_
