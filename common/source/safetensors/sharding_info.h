// Where the chunks lie that torch's distributed checkpoints keep in safetensors files: its
// HuggingFaceStorageWriter with save_distributed=True, and its FileSystemWriter with
// serialization_format=SAFETENSORS.
#ifndef CKPTD_COMMON_SOURCE_SAFETENSORS_SHARDING_INFO_H_
#define CKPTD_COMMON_SOURCE_SAFETENSORS_SHARDING_INFO_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/index.h"
#include "common/source/safetensors/header.h"

namespace ckptd {

// The key of a header's metadata that such files have (torch's CUSTOM_METADATA_KEY).
inline constexpr char kShardingInfoKey[] = "DCP_SHARDING_INFO";

// The offsets at which each tensor of the file begins in the whole tensor, as many as it has
// dimensions. Empty: the file holds whole tensors. Errors: those of HeaderError,
// "InvalidShardingInfo".
absl::StatusOr<std::map<std::string, Shape>> ReadShardingInfo(const SafetensorsHeader& header);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_SAFETENSORS_SHARDING_INFO_H_
