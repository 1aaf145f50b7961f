// The verbs of the `ckptd` binary.
#ifndef CKPTD_SERVER_DAEMON_COMMANDS_H_
#define CKPTD_SERVER_DAEMON_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckptd {

// Exit codes of every verb.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct KeepOptions {
  std::string socket;  // empty: run-dir/job/keeper.sock
  double linger = 0;   // seconds without a connection after which it ends; 0: never
};
// Runs a keeper until SIGTERM or SIGINT.
int KeepCommand(const Config& config, const KeepOptions& options);

// Runs one daemon until SIGTERM or SIGINT.
int RunCommand(const Config& config);

inline constexpr uint32_t kMaxProcesses = 1024;  // of one node
inline constexpr uint32_t kMaxNodes = 65536;
struct LaunchOptions {
  uint32_t nproc = 1;      // daemons on this node
  uint32_t nnodes = 1;
  uint32_t node_rank = 0;
  bool rendezvous_given = false;
  uint32_t max_restarts = 10;        // per daemon; starts again after a minute without a restart
  double start_timeout = 60;         // seconds until the group must be complete
  bool keep = false;                 // leave the keeper for the next launch
  std::vector<std::string> command;  // empty: run until a signal
  bool detach = false;               // go on in the background once the daemons are ready
  double linger = 0;                 // seconds without use after which the daemons end; 0: never
};
// Starts and supervises the daemons of this node. With a command, runs it and returns its exit
// code (128 + n after signal n). With `detach`, returns once the daemons are ready, also where
// another launcher runs them.
int LaunchCommand(const Config& config, const LaunchOptions& options);

// Ends the launcher of this job and node, and so its daemons. Waits until it has ended. Fine where
// there is none.
int StopCommand(const Config& config, const LaunchOptions& options);

// Prints `status` as one line on stderr, "ckptd: ...".
void PrintError(const absl::Status& status);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_COMMANDS_H_
