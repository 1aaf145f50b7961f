// Maps a slab: memory segments, one descriptor each, back to back in one reservation. Used by
// clients, by daemons for each other's memory, and by tests. Thread-safe.
#ifndef CKPTD_COMMON_BASE_SLAB_MAPPING_H_
#define CKPTD_COMMON_BASE_SLAB_MAPPING_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// Mappings start at multiples of this, so that huge pages are mapped as such.
inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

enum class MapMode : uint8_t {
  kSharedReadOnly,  // SHARED: writing is SIGSEGV
  kPrivate,         // PRIVATE: writable, a written page is copied first
  kSharedWritable,  // EXCLUSIVE, and daemon to daemon
};

struct MapSlabOptions {
  MapMode mode = MapMode::kSharedReadOnly;
  // Fill the page tables now, in one call, instead of fault by fault later. Best effort; ignored
  // by kernels before 5.14.
  bool populate = true;
};

// Address space of `bytes` > 0 bytes, aligned to kHugePageBytes and not accessible, over which
// memory can be mapped. Errors: ResourceExhausted NO_MEMORY.
absl::StatusOr<Mapping> ReserveAligned(uint64_t bytes);

// Makes the pages of mapped, writable memory in one call instead of fault by fault. Best effort;
// does nothing on kernels before 5.14.
void PopulateForWriting(std::span<std::byte> memory);

// Maps segment_bytes[i] bytes of fds[i], i = 0, 1, ..., back to back. The result owns the mapping
// (bytes() is the sum). The caller keeps the descriptors and may close them at once. Foreign
// values are checked: every descriptor must be a regular file of at least its segment's size,
// every segment except the last a multiple of the page size. Errors: InvalidArgument
// INVALID_REQUEST for descriptors that do not fit, PermissionDenied HANDLE_KIND if the memory may
// not be mapped in that mode (sealed, or handed out read-only), ResourceExhausted NO_MEMORY.
absl::StatusOr<Mapping> MapSlab(std::span<const int> fds, std::span<const uint64_t> segment_bytes,
                                const MapSlabOptions& options);

// The same for owned descriptors.
absl::StatusOr<Mapping> MapSlab(std::span<const UniqueFd> fds,
                                std::span<const uint64_t> segment_bytes,
                                const MapSlabOptions& options);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_SLAB_MAPPING_H_
