// Turns foreign text (names of files, messages of libraries) into valid protobuf strings.
#ifndef CKPTD_COMMON_WIRE_SENDABLE_TEXT_H_
#define CKPTD_COMMON_WIRE_SENDABLE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/utf8.h"
#include "common/source/path_text.h"

namespace ckptd {

// At most `limit` bytes of `text` as UTF-8, with '?' for other bytes. A receiver refuses a whole
// message if a string in it is not UTF-8.
inline std::string SendableText(std::string_view text, size_t limit = std::string_view::npos) {
  std::string out(text.substr(0, limit));
  size_t good = 0;
  while ((good += ValidUtf8Prefix(std::string_view(out).substr(good))) < out.size()) {
    out[good++] = '?';
  }
  return out;
}

// A fact of an error. File names are encoded for programs, too.
inline std::string SendableFact(std::string_view key, std::string_view value, size_t limit) {
  return key == "file" ? SendableText(TextOfPath(value), limit) : SendableText(value, limit);
}

}  // namespace ckptd

#endif  // CKPTD_COMMON_WIRE_SENDABLE_TEXT_H_
