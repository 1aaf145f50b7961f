// Whether foreign bytes are UTF-8: no overlong forms, no surrogates, nothing past U+10FFFF.
#ifndef CKPTD_COMMON_BASE_UTF8_H_
#define CKPTD_COMMON_BASE_UTF8_H_

#include <cstddef>
#include <string_view>

namespace ckptd {

// Bytes of the character that `text`, which is not empty, begins with; 0 when it begins with none.
size_t Utf8SequenceAt(std::string_view text);

// Bytes of the longest prefix that is well-formed; text.size() when all of it is.
size_t ValidUtf8Prefix(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_UTF8_H_
