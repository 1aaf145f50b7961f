// What a model's config.json says about its files. Pure: no I/O.
#ifndef CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_CONFIG_JSON_H_
#define CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_CONFIG_JSON_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// Ours: real ones have some kilobytes.
inline constexpr size_t kMaxConfigJsonBytes = 10'000'000;

// The file or index that "transformers_weights" names, relative to the folder, as transformers
// loads it in place of the usual ones. Empty where it names none, or where `json` is no object.
// Errors, without the config's own path: InvalidArgument SOURCE_INVALID for a name that leads out
// of the folder or is of another format.
absl::StatusOr<std::string> WeightsNamedBy(const std::string& json);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_FORMATS_SAFETENSORS_CONFIG_JSON_H_
