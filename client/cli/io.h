// What a run of ckptctl talks to: streams, terminal facts, the clock, Ctrl-C.
// Everything comes from outside, so that tests run the whole tool in-process.
#ifndef CKPTD_CLIENT_CLI_IO_H_
#define CKPTD_CLIENT_CLI_IO_H_

#include <functional>
#include <ostream>

#include "client/cpp/cancel.h"
#include "client/cpp/types.h"

namespace ckptd::cli {

struct Io {
  std::ostream& out;          // results only
  std::ostream& err;          // progress, hints, errors
  bool err_terminal = false;  // draws a bar instead of lines
  size_t width = 80;          // columns of that terminal
  CancelToken* interrupt = nullptr;  // not owned; cancelled by Ctrl-C
  std::function<TimePoint()> now = [] { return std::chrono::system_clock::now(); };
};

}  // namespace ckptd::cli

#endif  // CKPTD_CLIENT_CLI_IO_H_
