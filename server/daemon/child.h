// Child processes of `ckptd launch`. Main thread only.
#ifndef CKPTD_SERVER_DAEMON_CHILD_H_
#define CKPTD_SERVER_DAEMON_CHILD_H_

#include <sys/types.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ckptd {

struct ChildOptions {
  std::vector<std::string> arguments;              // [0] is looked up in PATH
  std::string program;                             // run instead of [0], which it is shown as
  std::map<std::string, std::string> environment;  // added to ours
  bool own_group = false;  // out of reach of the terminal's Ctrl-C
  int keep_fd = -1;        // stays open in the child
};

// What ends a process by default when it writes where nobody reads (SIGPIPE) or past
// `ulimit -f` (SIGXFSZ) becomes an error of the write. Children get the defaults back.
void IgnoreSignalsOfWrites();

// Starts a process that gets SIGTERM when we die. Signals are unblocked in it.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

// Ends children with SIGTERM, and with SIGKILL those that live on after `patience`.
// Their wait statuses; a pid that is no child of ours, or still there 5 s later, has none.
std::map<pid_t, int> EndChildren(const std::vector<pid_t>& pids,
                                 std::chrono::milliseconds patience);

// Exit code of a wait status, 128 + n after signal n.
int ExitCodeOf(int wait_status);
// "exit code 3" or "signal 9 (Killed)".
std::string DescribeExit(int wait_status);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_CHILD_H_
