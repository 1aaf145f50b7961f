// The reason why a single object is no checkpoint: what it is instead.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_OBJECT_H_
#define CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_OBJECT_H_

#include <string>

#include "absl/status/status.h"
#include "common/source/storage.h"

namespace ckptd::unrecognised {

// Never OK. By its first bytes and its last ones; pickles are read. Errors: DataLoss SOURCE_INVALID
// for what is damaged, or came in place of a checkpoint (a page, a pointer); Unimplemented
// SOURCE_UNSUPPORTED for files of others; PermissionDenied SOURCE_UNSAFE for a pickle that would
// execute something; those of the storage.
absl::Status WhyNoCheckpoint(const Storage& storage, const std::string& path);

}  // namespace ckptd::unrecognised

#endif  // CKPTD_COMMON_SOURCE_FORMATS_UNRECOGNISED_OBJECT_H_
