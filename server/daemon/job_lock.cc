#include "server/daemon/job_lock.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/access_settings.h"
#include "server/daemon/run_directory.h"

namespace ckptd {
namespace {

constexpr char kHeld[] = "held_by";
constexpr size_t kMostDigits = 16;

std::string LockOf(const Config& config, const LaunchOptions& options) {
  return fmt::format("{}/node-{}.lock", PathsOf(config).directory, options.node_rank);
}

}  // namespace

absl::StatusOr<FileLock> LockJob(const Config& config, const LaunchOptions& options) {
  const std::string folder = PathsOf(config).directory;
  CKPTD_ASSIGN_OR_RETURN(const AccessPolicy policy, ReadAccessPolicy(config));
  CKPTD_RETURN_IF_ERROR(MakeRunDirectory(folder, policy.group));
  absl::StatusOr<FileLock> lock = FileLock::Take(LockOf(config, options));
  if (lock.ok()) {
    CKPTD_RETURN_IF_ERROR(lock->Write(std::to_string(::getpid())));
    return lock;
  }
  if (lock.status().code() != absl::StatusCode::kFailedPrecondition) return lock.status();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("launching job {}: another `ckptd launch` keeps its daemons running "
                               "in {}; attach to them, end it with `ckptd stop`, or choose another "
                               "--job",
                               config.job, folder),
                   {{kHeld, std::to_string(HolderOfJob(config, options))}});
}

pid_t HolderOfJob(const Config& config, const LaunchOptions& options) {
  const auto text = ReadSmallFile(LockOf(config, options), kMostDigits);
  return text.ok() ? static_cast<pid_t>(std::strtol(text->c_str(), nullptr, 10)) : 0;
}

bool IsHeld(const absl::Status& status) { return FactsOf(status).count(kHeld) > 0; }

}  // namespace ckptd
