// The outside world of a ckptctl run: streams, terminal facts, Ctrl-C. Callers pass it in, so
// that tests can run the whole tool in-process.
#ifndef CKPTD_CLIENT_CLI_IO_H_
#define CKPTD_CLIENT_CLI_IO_H_

#include <functional>
#include <ostream>

#include "client/cpp/cancel.h"
#include "client/cpp/types.h"

namespace ckptd::cli {

struct Io {
  std::ostream& out;                 // results only
  std::ostream& err;                 // progress, hints, errors
  bool err_terminal = false;         // draw a bar instead of lines
  size_t width = 80;                 // columns of that terminal
  CancelToken* interrupt = nullptr;  // not owned; cancelled by Ctrl-C
  std::function<TimePoint()> now = [] { return std::chrono::system_clock::now(); };
};

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_IO_H_
