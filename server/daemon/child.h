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
  std::string program;  // run instead of [0]; lists of processes still show [0]
  std::map<std::string, std::string> environment;  // added to ours
  bool own_group = false;  // so that the terminal's Ctrl-C does not reach it
  int keep_fd = -1;        // stays open in the child
  // It stays when this process dies, in a session of its own, and reads and prints nothing.
  bool outlives = false;
};

// Makes writes return an error that would end the process by default: writes that nobody reads
// (SIGPIPE) and writes past `ulimit -f` (SIGXFSZ). Children get the default actions back.
void IgnoreSignalsOfWrites();

// Raises the soft limit of open files. Each memory segment has two descriptors, each lease one, and
// the limit of 1,024 is for programs that use select().
void RaiseFileLimit();

// Starts a process that gets SIGTERM when this one dies, unless it `outlives` it. Signals are unblocked in it.
absl::StatusOr<pid_t> StartChild(const ChildOptions& options);

// Ends children with SIGTERM, and after `patience` with SIGKILL. Returns their wait statuses. A
// pid that is not our child, or has not ended 5 s later, has none.
std::map<pid_t, int> EndChildren(const std::vector<pid_t>& pids,
                                 std::chrono::milliseconds patience);

// Makes this process the parent of what processes below it leave behind when they end.
void AdoptOrphans();
// Ends the children of this process that are not `kept`, and what these leave in turn: SIGTERM,
// after `patience` SIGKILL. Their wait statuses are lost.
void EndOrphans(const std::vector<pid_t>& kept, std::chrono::milliseconds patience);

// Whether SIGHUP does something: nohup has it ignored.
bool HangupCounts();

// Exit code of a wait status: 128 + n after signal n.
int ExitCodeOf(int wait_status);
// "exit code 3" or "signal 9 (Killed)".
std::string DescribeExit(int wait_status);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_CHILD_H_
