// Finds the files of a source: which kind it is, and which files to read.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_LOCATE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_LOCATE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/index.h"
#include "common/source/storage.h"
#include "common/source/weight_map/located_files.h"

namespace ckptd {

// Reads an index and a config.json, no safetensors file. Errors as of CheckpointFormat::ReadIndex.
absl::StatusOr<LocatedFiles> LocateFiles(const Storage& storage, const Listing& listing);

// Whether a folder is of this format: it holds safetensors, and either they come first, or its
// config.json names them. Reads that alone.
bool IsOfSafetensors(const Storage& storage, const Listing& listing);

// Whether LocateFiles would still find what `files` are of: those that hold tensors, and
// the index behind them, if one named them. Reads a folder's config.json alone. An
// error says that it would find nothing.
absl::StatusOr<bool> FindsStill(const Storage& storage, const Listing& listing,
                                const std::vector<SourceFile>& files);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_LOCATE_H_
