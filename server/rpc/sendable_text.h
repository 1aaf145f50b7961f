// Text from outside (names of files, messages of libraries) as protobuf takes it.
#ifndef CKPTD_SERVER_RPC_SENDABLE_TEXT_H_
#define CKPTD_SERVER_RPC_SENDABLE_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/checkpoint/text.h"

namespace ckptd {

// At most `limit` bytes of `text` as UTF-8, with '?' for what is none: a message
// with anything else in it is refused whole by its receiver.
inline std::string SendableText(std::string_view text, size_t limit = std::string_view::npos) {
  std::string out(text.substr(0, limit));
  size_t good = 0;
  while ((good += ValidUtf8Prefix(std::string_view(out).substr(good))) < out.size()) {
    out[good++] = '?';
  }
  return out;
}

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_SENDABLE_TEXT_H_
