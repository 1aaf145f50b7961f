// Foreign text (names of files and tensors, messages of libraries) for terminals and logs.
#ifndef CKPTD_COMMON_BASE_ESCAPE_H_
#define CKPTD_COMMON_BASE_ESCAPE_H_

#include <string>
#include <string_view>

namespace ckptd {

// The text with everything that could steer a terminal or fool its reader
// spelled out: control characters as \n, \x1b, \u0085; marks that change the
// direction of text as \u202e; bytes that are no UTF-8 as \xff; backslashes as
// they are. One line, of UTF-8.
std::string Escape(std::string_view text);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_ESCAPE_H_
