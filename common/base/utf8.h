// Checks whether foreign bytes are UTF-8: no overlong forms, no surrogates, nothing past
// U+10FFFF.
#ifndef CKPTD_COMMON_BASE_UTF8_H_
#define CKPTD_COMMON_BASE_UTF8_H_

#include <cstddef>
#include <string_view>

namespace ckptd {

// Bytes of the character at the beginning of `text`, which must not be empty. 0 if there is no
// valid one.
size_t Utf8SequenceAt(std::string_view text);

// Bytes of the longest well-formed prefix. text.size() if all of it is well-formed.
size_t ValidUtf8Prefix(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_UTF8_H_
