// Where the sockets of one daemon lie.
#ifndef CKPTD_SERVER_DAEMON_RUN_DIRECTORY_H_
#define CKPTD_SERVER_DAEMON_RUN_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckptd {

// Files of one daemon in run_dir/job.
struct SocketPaths {
  std::string directory;
  std::string workload;
  std::string admin;
  std::string fd;
  std::string memory;  // for the leader of the group
  std::string lock;    // held as long as a daemon of that rank lives
  std::string arena;   // how much that rank loaded, for the next daemon of it
};
SocketPaths PathsOf(const Config& config);
// Makes run_dir/job, 0700 and ours. Errors: CONFIG_INVALID: FailedPrecondition when it
// belongs to somebody else or others may enter it, else as the system refuses it;
// ResourceExhausted NO_MEMORY where the disk is full.
absl::Status MakeRunDirectory(const std::string& directory);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_RUN_DIRECTORY_H_
