// Reads the header of one safetensors file from storage.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FILE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FILE_H_

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/formats/safetensors/header.h"
#include "common/source/index.h"

namespace ckptd {

struct SafetensorsFile {
  SourceFile file;
  SafetensorsHeader header;
  uint64_t data_start = 0;  // absolute offset of the data, in bytes
};

// stat() of a path, links followed, with errors that suit a source: NotFound
// SOURCE_NOT_FOUND (also for a link to nothing, naming where it leads),
// PermissionDenied or Unavailable SOURCE_UNREADABLE, InvalidArgument
// SOURCE_INVALID for a path that can be none. Fact "file".
absl::StatusOr<struct stat> StatSource(const std::string& path);

// OK for a regular file; else as above, or InvalidArgument SOURCE_INVALID
// saying what it is. Ask before opening: opening a device can act on it.
absl::Status CheckRegular(const std::string& path);

// Reads and checks the header of `path` (absolute). Never blocks on a FIFO or
// device: only regular files are opened. The descriptor is closed again.
// Errors as of OpenCheckpoint, each with fact "file".
absl::StatusOr<SafetensorsFile> ReadSafetensorsFile(const std::string& path);

// Size, inode ... of an open or stat'ed file.
SourceFile IdentityOf(const std::string& path, const struct stat& info);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_FILE_H_
