// Finds the files of a source of torch's files.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_TORCH_LOCATE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_TORCH_LOCATE_H_

#include "absl/status/statusor.h"
#include "common/source/format.h"
#include "common/source/storage.h"
#include "common/source/weight_map/located_files.h"

namespace ckptd::torch {

// Reads an index, no file of torch; none that the index names is missing. Errors as of
// CheckpointFormat::ReadIndex.
absl::StatusOr<LocatedFiles> LocateFiles(const Storage& storage, const Listing& listing);

}  // namespace ckptd::torch

#endif  // CKPTD_COMMON_SOURCE_FORMATS_TORCH_LOCATE_H_
