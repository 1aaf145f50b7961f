// Foreign text in the sentence of an error.
#ifndef CKPTD_COMMON_SOURCE_TEXT_H_
#define CKPTD_COMMON_SOURCE_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

namespace ckptd {

// `text` in double quotes for a sentence: cut to about 200 bytes at a character
// boundary, control characters shown as '?'. Expects UTF-8.
std::string Quoted(std::string_view text);

// "a, b, c and 5 more", each Quoted.
std::string Listed(const std::vector<std::string>& names);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_TEXT_H_
