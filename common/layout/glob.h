// Name patterns: `*` stands for any characters (dots too), `?` for exactly one,
// everything else for itself.
#ifndef CKPTD_COMMON_LAYOUT_GLOB_H_
#define CKPTD_COMMON_LAYOUT_GLOB_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ckptd {

// True when `pattern` describes the whole of `text`. Byte-wise; at worst
// O(pattern x text), never exponential. Thread-safe.
bool MatchesGlob(std::string_view pattern, std::string_view text);

// Whether names of so many bytes in all can be matched with all of the patterns in a
// moment: a few seconds at worst.
bool AreFewGlobs(std::span<const std::string> patterns, uint64_t name_bytes);

}  // namespace ckptd

#endif  // CKPTD_COMMON_LAYOUT_GLOB_H_
