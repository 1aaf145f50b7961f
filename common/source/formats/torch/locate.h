// Finds the files of a source of torch's files.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_LOCATE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_LOCATE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/index.h"
#include "common/source/storage.h"
#include "common/source/weight_map/index_json.h"

namespace ckptd::torch {

struct LocatedFiles {
  std::string folder;              // absolute, that `names` are relative to
  std::vector<std::string> names;  // sorted, unique; with an index none of them is missing
  std::string index_path;
  std::optional<IndexJson> index;        // that named them, if one did
  std::optional<SourceFile> index_file;  // its header_hash is of all its bytes
  std::vector<std::string> remarks;
};

// Reads an index, no file of torch. Errors as of CheckpointFormat::ReadIndex.
absl::StatusOr<LocatedFiles> LocateFiles(const Storage& storage, const Listing& listing);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_LOCATE_H_
