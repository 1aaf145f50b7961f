// `ckptd stop`: ends the launcher of a job, which ends its daemons.
#include <fmt/format.h>
#include <signal.h>
#include <time.h>

#include <cerrno>
#include <chrono>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/commands.h"
#include "server/daemon/job_lock.h"
#include "server/daemon/run_directory.h"
#include "server/keeper/keeper_client.h"

namespace ckptd {
namespace {

constexpr std::chrono::seconds kPatience{30};  // more than a launcher has with its daemons
constexpr std::chrono::seconds kKeeperPatience{2};
constexpr timespec kTick = {0, 50'000'000};

// One that a launcher was told to leave (--keep), or that outlived a launcher that was killed.
void EndKeeperOf(const Config& config, const LaunchOptions& options) {
  const Deadline deadline = std::chrono::steady_clock::now() + kKeeperPatience;
  const auto keeper = ConnectToKeeper(KeeperSocketOf(config, options.node_rank), deadline);
  if (keeper.ok()) EndKeeper(keeper->get(), deadline);
}

// Its number may be that of any process here.
absl::Status Elsewhere(const Config& config) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("ending job {}: its launcher runs in another PID namespace, such as "
                               "another container that shares {}; run `ckptd stop` there",
                               config.job, config.run_dir));
}

absl::Status Stop(const Config& config, const LaunchOptions& options) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  pid_t told = 0;
  for (;;) {
    // Held until the keeper has ended, so that no new launcher takes it over.
    const absl::StatusOr<FileLock> free = LockJobToEnd(config, options);
    if (free.ok()) EndKeeperOf(config, options);
    if (!IsHeld(free.status())) return free.status();
    const JobHolder holder = HolderOfJob(config, options);
    if (holder.elsewhere) return Elsewhere(config);
    if (holder.pid > 0 && holder.pid != told) {
      if (::kill(holder.pid, SIGTERM) != 0 && errno != ESRCH) {
        return ErrnoStatus(
            errno, fmt::format("ending the launcher of job {}, process {}", config.job, holder.pid));
      }
      told = holder.pid;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return MakeError(
          absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
          fmt::format("ending job {}: its launcher, process {}, still runs {} s after SIGTERM; "
                      "look at its lines, or kill it",
                      config.job, told, kPatience.count()));
    }
    ::nanosleep(&kTick, nullptr);
  }
}

}  // namespace

int StopCommand(const Config& config, const LaunchOptions& options) {
  const absl::Status stopped = Stop(config, options);
  if (stopped.ok()) return kExitOk;
  PrintError(stopped);
  return kExitFailed;
}

}  // namespace ckptd
