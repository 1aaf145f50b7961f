// Placements as people write them: "replicate", "shard(0)", "strided_shard(0,2)".
#ifndef CKPTD_COMMON_LAYOUT_PLACEMENT_TEXT_H_
#define CKPTD_COMMON_LAYOUT_PLACEMENT_TEXT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/layout/layout.h"

namespace ckptd {

// Nullopt for other texts. Spaces are allowed after a comma and at both ends. Dimensions may be
// negative; split factors start at 1.
std::optional<Placement> ParsePlacement(std::string_view text);

// The text form of a placement, as ParsePlacement reads it.
std::string ToText(const Placement& placement);

// A decimal number without sign, spaces or overflow. Nullopt for others.
std::optional<uint32_t> ParseDecimal(std::string_view text);

// `text` without spaces, tabs and line ends at both ends.
std::string_view Trimmed(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_PLACEMENT_TEXT_H_
