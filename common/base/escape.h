// Makes foreign text (names of files and tensors, messages of libraries) safe for terminals and
// logs.
#ifndef CKPTD_COMMON_BASE_ESCAPE_H_
#define CKPTD_COMMON_BASE_ESCAPE_H_

#include <string>
#include <string_view>

namespace ckptd {

// The text as one line of UTF-8, with everything escaped that could control a terminal or mislead
// a reader. Control characters become \n, \x1b, \u0085. Marks that change the direction of text
// become \u202e. Bytes that are not UTF-8 become \xff. Backslashes are kept.
std::string Escape(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_ESCAPE_H_
