// Texts as pickles of protocol 0 write them, and texts that UTF-8 does not have. Pure.
#ifndef CKPTD_COMMON_SOURCE_PICKLE_ESCAPES_H_
#define CKPTD_COMMON_SOURCE_PICKLE_ESCAPES_H_

#include <optional>
#include <string>
#include <string_view>

namespace ckptd::pickle {

// UTF-8 in which halves of surrogate pairs may stand, as Python's "surrogatepass" writes them, with
// those escaped ("\ud800"). Nullopt: it is no such text.
std::optional<std::string> EscapeSurrogates(std::string_view text);

// UTF-8 of Python's "raw-unicode-escape", surrogates escaped. Nullopt: it is none.
std::optional<std::string> RawUnicode(std::string_view text);

// The bytes of a quoted literal of Python, such as 'a\x00b'. Nullopt: it is none.
std::optional<std::string> QuotedLiteral(std::string_view text);

// The bytes of UTF-8 in Latin-1. Nullopt: it has characters beyond it.
std::optional<std::string> Latin1(std::string_view utf8);

}  // namespace ckptd::pickle

#endif  // CKPTD_COMMON_SOURCE_PICKLE_ESCAPES_H_
