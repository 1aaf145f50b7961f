// Finds the files of a source: which kind it is, and which files to read.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_LOCATE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_LOCATE_H_

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/formats/safetensors/index_json.h"
#include "common/source/index.h"

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
  std::vector<std::string> remarks;      // sentences for people: what was left out
};

// `source` is absolute and has no trailing slash. Reads folders and an index,
// no safetensors file. Errors as of OpenCheckpoint.
absl::StatusOr<LocatedSource> LocateFiles(const std::string& source);

// Whether LocateFiles would still find what `files` are of: those that hold tensors, and
// the index behind them, if one named them. Reads folders alone, and their config.json. An
// error says that it would find nothing.
absl::StatusOr<bool> FindsStill(const std::string& source, const std::vector<SourceFile>& files);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_LOCATE_H_
