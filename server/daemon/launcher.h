// Starts the daemons of this node and starts those again that end. `ckptd launch` is one launcher,
// in the foreground or not. Main thread only.
#ifndef CKPTD_SERVER_DAEMON_LAUNCHER_H_
#define CKPTD_SERVER_DAEMON_LAUNCHER_H_

#include <string>

#include "common/base/file_lock.h"
#include "server/daemon/commands.h"
#include "server/daemon/config.h"
#include "server/daemon/detach.h"

namespace ckptd {

// Returns the exit code of `ckptd launch` when a signal, the command, or --linger has ended it.
// `config`: of rank 0 of this node. `lock`: the job's; it ends where somebody removes that file. `announcer` hears when all daemons are ready.
int SuperviseDaemons(const Config& config, const LaunchOptions& options, FileLock lock,
                     Announcer& announcer);

// "15 min", "90 s".
std::string DurationText(double seconds);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_LAUNCHER_H_
