// Foreign text: checking that it is UTF-8, and showing it in an error.
#ifndef CKPTD_COMMON_CHECKPOINT_TEXT_H_
#define CKPTD_COMMON_CHECKPOINT_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace ckptd {

// Bytes of the longest prefix that is well-formed UTF-8 (no overlong forms, no
// surrogates, nothing past U+10FFFF); text.size() when all of it is.
size_t ValidUtf8Prefix(std::string_view text);

// `text` in double quotes for a sentence: cut to about 200 bytes at a character
// boundary, control characters shown as '?'. Expects UTF-8.
std::string Quoted(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_CHECKPOINT_TEXT_H_
