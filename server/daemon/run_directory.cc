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
#include "common/base/trusted_path.h"

namespace ckptd {

SocketPaths PathsOf(const Config& config) {
  SocketPaths paths;
  paths.directory = config.run_dir + "/" + config.job;
  const std::string stem = fmt::format("{}/rank-{}", paths.directory, config.rank);
  paths.workload = stem + ".sock";
  paths.admin = stem + ".admin.sock";
  paths.fd = stem + ".fd.sock";
  paths.memory = stem + ".mem.sock";
  paths.metrics = stem + ".metrics.sock";
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

// Another user could put a folder and sockets of their own in the place of this daemon's.
absl::Status CheckOwners(const std::string& folder, const std::string& run_directory) {
  const auto why = WhyPathIsUnsafe(folder, {::geteuid()});
  if (!why.has_value()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("using the run directory {}: {}, so others could put theirs in its place; "
                               "choose one in folders of this user or root's with --run-dir "
                               "(CKPTD_RUN_DIR)",
                               run_directory, *why));
}

// The mode of a folder that was just made does not depend on the umask, but it may be narrower.
bool MakeFolder(const std::string& folder, mode_t mode) {
  if (::mkdir(folder.c_str(), mode) != 0) return errno == EEXIST;
  struct stat made = {};
  return ::lstat(folder.c_str(), &made) == 0 && ::chmod(folder.c_str(), (made.st_mode & mode) | 0700) == 0;
}

// The folders that `directory` is in, as far as they are not there, and the folder itself. The
// error is the system's, or tells who could change them.
absl::Status MakeFolders(const std::filesystem::path& directory) {
  std::filesystem::path made;
  for (const auto& name : directory) {
    const std::filesystem::path parent = made;
    made /= name;
    struct stat found = {};
    if (name.empty() || ::stat(made.c_str(), &found) == 0) continue;
    CKPTD_RETURN_IF_ERROR(CheckOwners(parent.empty() ? "." : parent.string(), directory.string()));
    if (MakeFolder(made.string(), made == directory ? 0700 : 0755)) continue;
    const absl::Status status = ErrnoStatus(errno, "making the run directory " + directory.string());
    // a full disk may have room later
    const bool passes = status.code() == absl::StatusCode::kResourceExhausted;
    return MakeError(status.code(), passes ? ReasonOf(status) : reason::kConfigInvalid,
                     MessageOf(status) + "; choose another one with --run-dir (CKPTD_RUN_DIR)");
  }
  return CheckOwners(directory.parent_path().string(), directory.string());
}

}  // namespace

absl::Status MakeRunDirectory(const std::string& directory, std::optional<gid_t> group) {
  CKPTD_RETURN_IF_ERROR(MakeFolders(directory));
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
