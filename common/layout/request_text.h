// Texts that people write for a load, in flags and settings: a layout and a dtype. Thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_REQUEST_TEXT_H_
#define CKPTD_COMMON_LAYOUT_REQUEST_TEXT_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/checkpoint/dtype.h"

namespace ckptd {

// The text of a layout: `argument` itself if it is a short form or JSON, or the content of the
// file that it names, with or without @. Does not parse it. Errors: those of reading the file.
absl::StatusOr<std::string> ReadLayout(const std::string& argument);

// F16, BF16, F32 and F64, also in small letters or with PyTorch's names. Nullopt for other types,
// to which no load casts.
std::optional<Dtype> ParseCastDtype(std::string_view name);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_REQUEST_TEXT_H_
