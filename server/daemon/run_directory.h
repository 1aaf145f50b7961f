// The paths of one daemon's sockets.
#ifndef CKPTD_SERVER_DAEMON_RUN_DIRECTORY_H_
#define CKPTD_SERVER_DAEMON_RUN_DIRECTORY_H_

#include <sys/types.h>

#include <optional>
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
  std::string memory;  // for the group's leader
  std::string lock;    // locked as long as a daemon of that rank lives
  std::string keeper;  // of `launch` on node 0 and of `keep`; see KeeperSocketOf
  std::string metrics;  // with --metrics socket, and for `launch`
  std::string arena;   // how much that rank loaded, for its next daemon
};
SocketPaths PathsOf(const Config& config);
// Where the keeper of a node's launcher listens. Several nodes may be simulated in one folder.
std::string KeeperSocketOf(const Config& config, uint32_t node_rank);
// Makes run_dir/job with mode 0700, or 0750 for a group, and the folders it is in with 0755 or less,
// whatever the umask. Errors: CONFIG_INVALID: FailedPrecondition if it belongs to another user, others
// may enter it or could put another one in its place (common/base/trusted_path.h), or this process is
// no member of the group, otherwise with the system's code; ResourceExhausted NO_MEMORY on a full disk.
absl::Status MakeRunDirectory(const std::string& directory,
                              std::optional<gid_t> group = std::nullopt);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_RUN_DIRECTORY_H_
