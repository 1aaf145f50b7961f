// The reason why a folder is no checkpoint: what it holds, or lacks.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_FOLDER_H_
#define CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_FOLDER_H_

#include "absl/status/status.h"
#include "common/source/format.h"
#include "common/source/storage.h"

namespace ckptd::unrecognised {

// Never OK. By its names, and those of a few folders below. Errors: NotFound SOURCE_NOT_FOUND for a
// folder that lacks something or everything, Unimplemented SOURCE_UNSUPPORTED for one with files of
// other programs; fact "file".
absl::Status WhyNoCheckpoint(const Storage& storage, const Listing& folder);

}  // namespace ckptd::unrecognised

#endif  // CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_FOLDER_H_
