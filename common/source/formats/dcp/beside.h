// Files that trainers lay beside a torch distributed checkpoint: Megatron-Core's common.pt and
// metadata.json, Lightning's meta.pt.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_DCP_BESIDE_H_
#define CKPTD_COMMON_SOURCE_FORMATS_DCP_BESIDE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/source/format.h"
#include "common/source/storage.h"

namespace ckptd::dcp {

// Adds their plain values and opaque objects, and the files themselves, to an index. What cannot be
// read becomes a remark. Errors: PermissionDenied SOURCE_UNSAFE; those of the storage.
absl::Status AddFilesBeside(const Storage& storage, const Listing& folder,
                            OpenedCheckpoint& opened);

}  // namespace ckptd::dcp

#endif  // CKPTD_COMMON_SOURCE_FORMATS_DCP_BESIDE_H_
