#include "common/base/slab_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "fmt/format.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace ckptd {
namespace {

absl::Status Misfit(size_t segment, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("mapping segment {} of a slab: {}", segment, why));
}

absl::Status MapError(int error, const std::string& doing) {
  const std::string message = doing + ": " + std::strerror(error);
  if (error == EPERM || error == EACCES) {
    return MakeError(absl::StatusCode::kPermissionDenied, reason::kHandleKind,
                     message + "; the memory was handed out for reading only");
  }
  // A descriptor opened with O_PATH, or of a file that cannot be mapped.
  if (error == EBADF || error == ENODEV) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     message + "; what came is no memory");
  }
  if (error == ENOMEM || error == ENFILE) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     message + "; free address space or raise ulimit -v or vm.max_map_count");
  }
  return absl::InternalError(message);
}

// The sum of all segments. Checks each number and descriptor.
absl::StatusOr<uint64_t> CheckSegments(std::span<const int> fds,
                                       std::span<const uint64_t> segment_bytes) {
  if (fds.empty() || fds.size() != segment_bytes.size()) {
    return Misfit(0, fmt::format("{} descriptors for {} segments", fds.size(),
                                 segment_bytes.size()));
  }
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  uint64_t total = 0;
  for (size_t i = 0; i < fds.size(); ++i) {
    const uint64_t bytes = segment_bytes[i];
    if (bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() / 4 - total) {
      return Misfit(i, fmt::format("its size of {} bytes is not possible", bytes));
    }
    if (i + 1 < fds.size() && bytes % page != 0) {
      return Misfit(i, fmt::format("its size of {} bytes is no multiple of {}", bytes, page));
    }
    struct stat info = {};
    if (::fstat(fds[i], &info) != 0) return Misfit(i, std::strerror(errno));
    if (!S_ISREG(info.st_mode)) return Misfit(i, "its descriptor is not of memory");
    if (static_cast<uint64_t>(info.st_size) < bytes) {
      return Misfit(i, fmt::format("it should hold {} bytes and holds {}", bytes, info.st_size));
    }
    total += bytes;
  }
  return total;
}

struct Access {
  int protection;
  int flags;
  int populate;
};

Access AccessOf(MapMode mode) {
  switch (mode) {
    case MapMode::kPrivate:
      return {PROT_READ | PROT_WRITE, MAP_PRIVATE, MADV_POPULATE_READ};
    case MapMode::kSharedWritable:
      return {PROT_READ | PROT_WRITE, MAP_SHARED, MADV_POPULATE_WRITE};
    case MapMode::kSharedReadOnly:
      break;
  }
  return {PROT_READ, MAP_SHARED, MADV_POPULATE_READ};
}

}  // namespace

absl::StatusOr<Mapping> ReserveAligned(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::string doing = fmt::format("reserving {} bytes of address space", bytes);
  if (bytes == 0 || bytes > std::numeric_limits<uint64_t>::max() / 2) {
    return MapError(ENOMEM, doing);
  }
  const uint64_t used = (bytes + page - 1) / page * page;
  const uint64_t taken = used + kHugePageBytes;
  void* raw = ::mmap(nullptr, taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return MapError(errno, doing);
  const auto start = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = (start + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* const base = static_cast<std::byte*>(raw) + (aligned - start);
  if (aligned > start) ::munmap(raw, aligned - start);
  if (const uint64_t tail = start + taken - (aligned + used); tail > 0) {
    ::munmap(base + used, tail);
  }
  return Mapping(base, bytes);
}

void PopulateForWriting(std::span<std::byte> memory) {
  ::madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
}

absl::StatusOr<Mapping> MapSlab(std::span<const int> fds, std::span<const uint64_t> segment_bytes,
                                const MapSlabOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t total, CheckSegments(fds, segment_bytes));
  CKPTD_ASSIGN_OR_RETURN(Mapping slab, ReserveAligned(total));
  const Access access = AccessOf(options.mode);
  uint64_t offset = 0;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (::mmap(slab.data() + offset, segment_bytes[i], access.protection,
               access.flags | MAP_FIXED, fds[i], 0) == MAP_FAILED) {
      return MapError(errno, fmt::format("mapping segment {} of a slab ({} bytes)", i,
                                         segment_bytes[i]));
    }
    offset += segment_bytes[i];
  }
  if (options.populate) ::madvise(slab.data(), total, access.populate);
  return slab;
}

absl::StatusOr<Mapping> MapSlab(std::span<const UniqueFd> fds,
                                std::span<const uint64_t> segment_bytes,
                                const MapSlabOptions& options) {
  std::vector<int> raw;
  raw.reserve(fds.size());
  for (const UniqueFd& fd : fds) raw.push_back(fd.get());
  return MapSlab(raw, segment_bytes, options);
}

}  // namespace ckptd
