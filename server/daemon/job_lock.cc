#include "server/daemon/job_lock.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/access_settings.h"
#include "server/daemon/run_directory.h"

namespace ckptd {
namespace {

constexpr char kHeld[] = "held_by";
constexpr size_t kMostBytes = 128;
constexpr size_t kStartTime = 19;  // of the words behind the program's name, which may have spaces

std::string LockOf(const Config& config, const LaunchOptions& options) {
  return fmt::format("{}/node-{}.lock", PathsOf(config).directory, options.node_rank);
}

// When a process began, in ticks since boot; 0 if there is none of that number.
uint64_t StartOf(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));  // its size is said to be 0
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  const std::vector<std::string> words{std::istream_iterator<std::string>(rest), {}};
  return words.size() > kStartTime ? std::strtoull(words[kStartTime].c_str(), nullptr, 10) : 0;
}

uint64_t OwnPidNamespace() {
  struct stat info = {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

// The group that has the folder of a job, if it may enter it.
std::optional<gid_t> GroupOf(const std::string& folder) {
  struct stat info = {};
  if (::lstat(folder.c_str(), &info) != 0 || (info.st_mode & S_IRWXG) == 0) return std::nullopt;
  return info.st_gid;
}

absl::StatusOr<FileLock> Lock(const Config& config, const LaunchOptions& options,
                              std::optional<gid_t> group) {
  const std::string folder = PathsOf(config).directory;
  CKPTD_RETURN_IF_ERROR(MakeRunDirectory(folder, group));
  absl::StatusOr<FileLock> lock = FileLock::Take(LockOf(config, options));
  if (lock.ok()) {
    CKPTD_RETURN_IF_ERROR(lock->Write(fmt::format(
        "{} {} {} {}", ::getpid(), StartOf(::getpid()), OwnPidNamespace(), options.nproc)));
    return lock;
  }
  if (lock.status().code() != absl::StatusCode::kFailedPrecondition) return lock.status();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("launching job {}: another `ckptd launch` keeps its daemons running "
                               "in {}; attach to them, end it with `ckptd stop`, or choose another "
                               "--job",
                               config.job, folder),
                   {{kHeld, std::to_string(HolderOfJob(config, options).pid)}});
}

}  // namespace

absl::StatusOr<FileLock> LockJob(const Config& config, const LaunchOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const AccessPolicy policy, ReadAccessPolicy(config));
  return Lock(config, options, policy.group);
}

absl::StatusOr<FileLock> LockJobToEnd(const Config& config, const LaunchOptions& options) {
  return Lock(config, options, GroupOf(PathsOf(config).directory));
}

JobHolder HolderOfJob(const Config& config, const LaunchOptions& options) {
  JobHolder holder;
  uint64_t start = 0;
  uint64_t pid_namespace = 0;
  std::istringstream text(ReadSmallFile(LockOf(config, options), kMostBytes).value_or(""));
  if (!(text >> holder.pid >> start >> pid_namespace >> holder.nproc)) return {};
  holder.elsewhere = pid_namespace != OwnPidNamespace();
  // A launcher that was killed has left its number, until the next one writes its own.
  if (holder.elsewhere || start == 0 || StartOf(holder.pid) != start) holder.pid = 0;
  return holder;
}

bool IsHeld(const absl::Status& status) { return FactsOf(status).count(kHeld) > 0; }

}  // namespace ckptd
