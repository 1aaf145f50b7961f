// One launcher for each job and node.
#ifndef CKPTD_SERVER_DAEMON_JOB_LOCK_H_
#define CKPTD_SERVER_DAEMON_JOB_LOCK_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/file_lock.h"
#include "server/daemon/commands.h"
#include "server/daemon/config.h"

namespace ckptd {

// Two launchers that start the same daemons at once would each get some of them. Makes the job's
// folder. The kernel releases the lock when its process ends, however it ends. The file holds the
// pid, and what tells it from a later process of that number. Errors: FailedPrecondition CONFIG_INVALID where another launcher has the lock; those of
// MakeRunDirectory and FileLock.
absl::StatusOr<FileLock> LockJob(const Config& config, const LaunchOptions& options);

// The same to end a job, whose folder stays open to the group that --allow-gid has named.
absl::StatusOr<FileLock> LockJobToEnd(const Config& config, const LaunchOptions& options);

// The launcher that has the lock.
struct JobHolder {
  pid_t pid = 0;           // 0: not known yet, or not to be seen from here
  bool elsewhere = false;  // in another PID namespace, so its number says nothing here
  uint32_t nproc = 0;      // daemons on its node; 0: not known yet
};
JobHolder HolderOfJob(const Config& config, const LaunchOptions& options);

// Whether `status` is of LockJob, where another launcher has the lock.
bool IsHeld(const absl::Status& status);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_JOB_LOCK_H_
