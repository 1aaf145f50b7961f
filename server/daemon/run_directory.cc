#include "server/daemon/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <fmt/format.h>

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

absl::Status MakeRunDirectory(const std::string& directory) {
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
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     fmt::format("using the run directory {}: it must be a directory of this user "
                                 "that nobody else can enter (mode 0700); remove it, or choose "
                                 "another --run-dir",
                                 directory));
  }
  return absl::OkStatus();
}

}  // namespace ckptd
