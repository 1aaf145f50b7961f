// The directory of a zip file, which stands at its end. Only archive.cc uses it.
#ifndef CKPTD_COMMON_SOURCE_ZIP_DIRECTORY_H_
#define CKPTD_COMMON_SOURCE_ZIP_DIRECTORY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/zip/archive.h"
#include "common/source/zip/object_part.h"

namespace ckptd::zip {

// Where the directory lies, as the end record says, and the end record of zip64 where there is one.
struct DirectoryPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t records = 0;
};

// Looks for the end record in the last 64 KiB of the part. The directory ends where the end record
// begins. Errors: those of Archive::Open.
absl::StatusOr<DirectoryPlace> FindDirectory(const ObjectPart& part);

// A record as the directory states it; `record.offset` is left to its local header.
struct DirectoryEntry {
  Record record;
  uint64_t header_offset = 0;
};

// Every entry, in the order of the directory. Errors: those of Archive::Open.
absl::StatusOr<std::vector<DirectoryEntry>> ReadDirectory(const ObjectPart& part,
                                                          const DirectoryPlace& place);

// Values that a local header and an entry of the directory have in common.
inline constexpr uint16_t kEncrypted = 1;
inline constexpr uint32_t kIn64 = 0xffff'ffff;  // the number stands in the field of zip64

// The numbers of the field of zip64 within `extra`, in their order; empty: there is no such field.
std::vector<uint64_t> Zip64Numbers(std::span<const std::byte> extra);

}  // namespace ckptd::zip

#endif  // CKPTD_COMMON_SOURCE_ZIP_DIRECTORY_H_
