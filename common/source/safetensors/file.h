// Reads the header of one safetensors file from storage.
#ifndef CKPTD_COMMON_SOURCE_SAFETENSORS_FILE_H_
#define CKPTD_COMMON_SOURCE_SAFETENSORS_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/source/safetensors/header.h"
#include "common/source/index.h"
#include "common/source/storage.h"

namespace ckptd {

struct SafetensorsFile {
  SourceFile file;
  SafetensorsHeader header;
  uint64_t data_start = 0;  // absolute offset of the data, in bytes
};

// Reads and checks the header of `path` (absolute). The object is closed again. Errors: those of
// CheckpointFormat::ReadIndex, each with fact "file".
absl::StatusOr<SafetensorsFile> ReadSafetensorsFile(const Storage& storage,
                                                    const std::string& path);

// The same of what lies in an open object from `begin` to its end: files hold other things in front
// of it.
absl::StatusOr<SafetensorsFile> ReadSafetensorsObject(const ReadableObject& object, uint64_t begin);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_SAFETENSORS_FILE_H_
