// The JSON inside a safetensors header. For safetensors_header.cc alone.
#ifndef CKPTD_COMMON_SOURCE_SAFETENSORS_HEADER_JSON_H_
#define CKPTD_COMMON_SOURCE_SAFETENSORS_HEADER_JSON_H_

#include <string_view>

#include "absl/status/status.h"
#include "common/source/safetensors/header.h"

namespace ckptd {

// Appends the tensors as stated: in their order, repeated names included, sizes
// and offsets unchecked. `json` is valid UTF-8 of at most kMaxHeaderBytes.
// Needs memory in proportion to its length and no stack. Errors:
// InvalidHeaderDeserialization, LimitExceeded.
absl::Status ReadHeaderJson(std::string_view json, SafetensorsHeader& header);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_SAFETENSORS_HEADER_JSON_H_
