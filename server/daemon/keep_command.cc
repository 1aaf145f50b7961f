// `ckptd keep`: the process that holds descriptors while daemons are away.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "common/base/logging.h"
#include "common/base/posix.h"
#include "common/base/status.h"
#include "server/daemon/access_settings.h"
#include "server/daemon/check_config.h"
#include "server/daemon/child.h"
#include "server/daemon/commands.h"
#include "server/daemon/run_directory.h"
#include "server/keeper/keeper.h"

namespace ckptd {
namespace {

absl::StatusOr<std::string> SocketOf(const Config& config, const KeepOptions& options) {
  if (!options.socket.empty()) return options.socket;
  CKPTD_RETURN_IF_ERROR(CheckConfig(config));
  const SocketPaths paths = PathsOf(config);
  CKPTD_ASSIGN_OR_RETURN(const AccessPolicy policy, ReadAccessPolicy(config));
  CKPTD_RETURN_IF_ERROR(MakeRunDirectory(paths.directory, policy.group));
  return paths.keeper;
}

absl::StatusOr<std::unique_ptr<Keeper>> OpenKeeper(const Config& config,
                                                   const KeepOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const std::string socket, SocketOf(config, options));
  return Keeper::Open(socket);
}

// A keeper that outlives its launcher must not hold the pipe that somebody reads the launcher's
// lines from to their end. A file is no such pipe.
void LetGoOfPipes() {
  struct stat info = {};
  if (::fstat(STDERR_FILENO, &info) == 0 && S_ISREG(info.st_mode)) return;
  const UniqueFd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDERR_FILENO);
  ReopenLog();
}

}  // namespace

int KeepCommand(const Config& config, const KeepOptions& options) {
  ::prctl(PR_SET_NAME, "ckptd-keep");
  // Other processes of this user must not read shard memory through /proc.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  LogLevel level = LogLevel::kInfo;
  ParseLogLevel(config.log_level, level);
  InitLogging("keeper", level);
  IgnoreSignalsOfWrites();
  ::signal(SIGHUP, SIG_IGN);
  RaiseFileLimit();
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT}) ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  const UniqueFd stop(::signalfd(-1, &signals, SFD_CLOEXEC));
  auto keeper = OpenKeeper(config, options);
  if (keeper.ok() && !stop.valid()) keeper = ErrnoStatus(errno, "waiting for signals");
  if (!keeper.ok()) {
    PrintError(keeper.status());
    return kExitUsage;
  }
  const std::function<void()> nothing = [] {};
  const std::string why = (*keeper)->Run(
      stop.get(), std::chrono::milliseconds(static_cast<int64_t>(options.linger * 1000)),
      options.linger > 0 ? LetGoOfPipes : nothing);
  Log(LogLevel::kInfo, "the keeper ends: {}", why);
  return kExitOk;
}

}  // namespace ckptd
