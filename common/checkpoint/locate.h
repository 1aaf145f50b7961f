// Finds the files of a source: which kind it is, and which files to read.
#ifndef CKPTD_COMMON_CHECKPOINT_LOCATE_H_
#define CKPTD_COMMON_CHECKPOINT_LOCATE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/checkpoint/index_json.h"

namespace ckptd {

// Ours, per source: bounds the work and memory that a hostile folder can cause.
inline constexpr size_t kMaxSourceFiles = 100'000;
inline constexpr size_t kMaxFolderEntries = 1'000'000;

struct LocatedSource {
  std::string folder;              // absolute, that `names` are relative to
  std::vector<std::string> names;  // of the safetensors files, sorted, unique
  // The index that named them, if one did.
  std::string index_path;
  std::optional<IndexJson> index;
  std::optional<SourceFile> index_file;  // who the index was; header_hash is of all its bytes
};

// `source` is absolute and has no trailing slash. Reads folders and an index,
// no safetensors file. Errors as of OpenCheckpoint.
absl::StatusOr<LocatedSource> LocateFiles(const std::string& source);

// The index that LocateFiles would read of it now; empty: none. Reads folders alone.
absl::StatusOr<std::string> FindIndex(const std::string& source);

}  // namespace ckptd

#endif  // CKPTD_COMMON_CHECKPOINT_LOCATE_H_
