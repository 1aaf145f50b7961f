#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "client/cli/cli.h"
#include "client/cli/exit_codes.h"
#include "client/cli/interrupt.h"

int main(int argc, char** argv) {
  // If the reader has gone (| head), a failed write ends the program.
  std::signal(SIGPIPE, SIG_DFL);
  // We do not fork while gRPC runs, and its warnings are not for users.
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  ckptd::CancelToken token;
  const ckptd::cli::InterruptWatcher watcher(token);
  ckptd::cli::Io io{std::cout, std::cerr};
  io.interrupt = &token;
  io.err_terminal = ::isatty(STDERR_FILENO) == 1;
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) io.width = size.ws_col;
  const int code = ckptd::cli::RunCli(std::vector<std::string>(argv + 1, argv + argc), io);
  std::cout.flush();
  if (std::cout.good()) return code;
  std::cerr << "ckptctl: writing to standard output: what it said is lost; see where it goes\n";
  return ckptd::cli::kExitFailed;
}
