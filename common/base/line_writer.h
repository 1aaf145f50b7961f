// Lines to a descriptor whose reader may stand still: a terminal after Ctrl-S, or a
// pipe that nobody empties. Nothing here waits for it.
#ifndef CKPTD_COMMON_BASE_LINE_WRITER_H_
#define CKPTD_COMMON_BASE_LINE_WRITER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "common/base/posix.h"

namespace ckptd {

// Not thread-safe. Does not own `fd`, which stays open as long as this lives.
class LineWriter {
 public:
  explicit LineWriter(int fd);

  // `line` ends with a newline. False when it was dropped. A line of which the reader
  // took a part counts as written: its rest goes before the next one.
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
