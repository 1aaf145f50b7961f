// What people write for a load, in flags and settings: a layout and a dtype. Thread-safe.
#ifndef CKPTD_COMMON_LAYOUT_REQUEST_TEXT_H_
#define CKPTD_COMMON_LAYOUT_REQUEST_TEXT_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/source/dtype.h"

namespace ckptd {

// The text of a layout: a short spelling or inline JSON as it is, or what a file holds that is
// named, with or without @. Errors: those of reading the file. Parses nothing.
absl::StatusOr<std::string> ReadLayout(const std::string& argument);

// F16, BF16, F32 and F64, also in small letters or as PyTorch calls them; nullopt for others,
// to which no load casts.
std::optional<Dtype> ParseCastDtype(std::string_view name);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_REQUEST_TEXT_H_
