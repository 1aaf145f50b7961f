// The files of one format that make a checkpoint, and the index that names them.
#ifndef CKPTD_COMMON_SOURCE_WEIGHT_MAP_LOCATED_FILES_H_
#define CKPTD_COMMON_SOURCE_WEIGHT_MAP_LOCATED_FILES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/index.h"
#include "common/source/storage.h"
#include "common/source/weight_map/index_json.h"

namespace ckptd {

struct LocatedFiles {
  std::string folder;              // absolute, that `names` are relative to
  std::vector<std::string> names;  // of the files with tensors, sorted, unique
  bool alone = false;              // it is one file, and others in the folder were not looked for
  // The index that named them, if one did.
  std::string index_path;
  std::optional<IndexJson> index;
  std::optional<SourceFile> index_file;  // who the index was; header_hash is of all its bytes
  std::vector<std::string> remarks;      // sentences for people: what was left out
};

// The file of a source that is no folder.
LocatedFiles LocateOneFile(const std::string& path);

// The files that an index names, which end with `extension`; none of them is looked at. Errors, with
// fact "file": those of ParseIndexJson and of the storage; InvalidArgument SOURCE_INVALID for more
// than kMaxSourceFiles.
absl::StatusOr<LocatedFiles> LocateByIndex(const Storage& storage, const std::string& path,
                                           std::string_view extension);

// InvalidArgument SOURCE_INVALID for a source of more than kMaxSourceFiles.
absl::Status CheckFileCount(const std::string& source, size_t count);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_WEIGHT_MAP_LOCATED_FILES_H_
