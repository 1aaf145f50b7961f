// Names of models on the Hugging Face hub, as its local cache holds them.
#ifndef CKPTD_COMMON_SOURCE_HUB_CACHE_H_
#define CKPTD_COMMON_SOURCE_HUB_CACHE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckptd {

// The path that `text` stands for in this process: hf://ORG/NAME[@REVISION][/FILE], or
// ORG/NAME[@REVISION] and NAME where there is no such path, in the cache that the environment
// names (HF_HUB_CACHE, HF_HOME); any other text as it is. Nothing is downloaded. Reads folders.
// Errors: NotFound SOURCE_NOT_FOUND for what the cache does not hold, Unimplemented
// SOURCE_UNSUPPORTED for other schemes than file:// (s3://).
absl::StatusOr<std::string> PathOfName(const std::string& text);

// OK, or the error for a source whose scheme is read by nobody here.
absl::Status CheckScheme(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_HUB_CACHE_H_
