// Deflated records. Only archive.cc uses it.
#ifndef CKPTD_COMMON_SOURCE_ZIP_INFLATE_H_
#define CKPTD_COMMON_SOURCE_ZIP_INFLATE_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/source/zip/archive.h"
#include "common/source/zip/object_part.h"

namespace ckptd::zip {

// The plain bytes of a deflated record, exactly `record.plain_bytes`. Takes no more memory than
// what came out of it, twice. Errors: those of Archive::Read.
absl::StatusOr<std::string> Inflate(const ObjectPart& part, const Record& record);

}  // namespace ckptd::zip

#endif  // CKPTD_COMMON_SOURCE_ZIP_INFLATE_H_
