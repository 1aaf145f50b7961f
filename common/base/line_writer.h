// Writes lines to a descriptor without waiting for its reader. A terminal after Ctrl-S, or a pipe
// that nobody reads, must not block the process.
#ifndef CKPTD_COMMON_BASE_LINE_WRITER_H_
#define CKPTD_COMMON_BASE_LINE_WRITER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/posix.h"

namespace ckptd {

// Not thread-safe. Does not own `fd`, which must stay open.
class LineWriter {
 public:
  explicit LineWriter(int fd);

  // `line` must end with a newline. False if the line was dropped. If the reader took part of it,
  // it counts as written, and its rest is written before the next line.
  bool Write(std::string_view line);

 private:
  enum class Kind { kNone, kFile, kOwn, kPolled, kSocket };

  size_t Take(std::string_view bytes) const;
  ssize_t WriteOnce(std::string_view bytes) const;

  int fd_;
  Kind kind_ = Kind::kNone;
  UniqueFd own_;
  std::string rest_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_LINE_WRITER_H_
