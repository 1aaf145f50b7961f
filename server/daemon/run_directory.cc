#include "server/daemon/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {

SocketPaths PathsOf(const Config& config) {
  SocketPaths paths;
  paths.directory = config.run_dir + "/" + config.job;
  const std::string stem = fmt::format("{}/rank-{}", paths.directory, config.rank);
  paths.workload = stem + ".sock";
  paths.admin = stem + ".admin.sock";
  paths.fd = stem + ".fd.sock";
  paths.memory = stem + ".mem.sock";
  paths.lock = stem + ".lock";
  paths.keeper = paths.directory + "/keeper.sock";
  paths.arena = stem + ".arena";
  return paths;
}

std::string KeeperSocketOf(const Config& config, uint32_t node_rank) {
  const SocketPaths paths = PathsOf(config);
  if (node_rank == 0) return paths.keeper;
  return fmt::format("{}/node-{}.keeper.sock", paths.directory, node_rank);
}

namespace {

// By a descriptor, so that it is still the directory that was looked at. One that an earlier daemon
// made, for itself or for another group, is given to this one.
absl::Status GiveTo(const std::string& directory, gid_t group) {
  const int how = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  const UniqueFd opened(::open(directory.c_str(), how));
  struct stat info = {};
  if (!opened.valid() || ::fstat(opened.get(), &info) != 0) {
    return ErrnoStatus(errno, "opening the run directory " + directory);
  }
  const bool given =
      info.st_gid == group || ::fchown(opened.get(), static_cast<uid_t>(-1), group) == 0;
  if (given && ::fchmod(opened.get(), 0750) == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("giving the run directory {} to group {}: {}; make this daemon's "
                               "user a member of that group (in a pod by fsGroup or "
                               "supplementalGroups), or name another one with --allow-gid",
                               directory, group, std::strerror(errno)));
}

}  // namespace

absl::Status MakeRunDirectory(const std::string& directory, std::optional<gid_t> group) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(directory).parent_path(), error);
  if (!error && ::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    error = std::error_code(errno, std::generic_category());
  }
  if (error) {
    const absl::Status status = ErrnoStatus(error.value(), "making the run directory " + directory);
    // a full disk may have room later
    const bool passes = status.code() == absl::StatusCode::kResourceExhausted;
    return MakeError(status.code(), passes ? ReasonOf(status) : reason::kConfigInvalid,
                     MessageOf(status) + "; choose another one with --run-dir (CKPTD_RUN_DIR)");
  }
  struct stat info = {};
  if (::lstat(directory.c_str(), &info) != 0) {
    return ErrnoStatus(errno, "looking at the run directory " + directory);
  }
  const mode_t others = group.has_value() ? 027 : 077;
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & others) != 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     fmt::format("using the run directory {}: it must be a directory of this user "
                                 "that nobody else can enter (mode {}); remove it, or choose "
                                 "another --run-dir",
                                 directory, group.has_value() ? "0750" : "0700"));
  }
  return group.has_value() ? GiveTo(directory, *group) : absl::OkStatus();
}

}  // namespace ckptd
