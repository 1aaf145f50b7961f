#include "server/daemon/slab_dir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "common/base/trusted_path.h"
#include "server/daemon/sizes.h"

namespace ckptd {
namespace {

absl::Status Refused(const Config& config, const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("checking --slab-dir {}: {}", config.slab_dir, why));
}

constexpr char kMount[] = "mount memory there (an emptyDir with medium: Memory, or a tmpfs)";
constexpr char kWritable[] = "; let this daemon's user write there";
constexpr char kEnlarge[] = "make it larger (sizeLimit of the emptyDir, size= of the tmpfs)";

}  // namespace

absl::StatusOr<std::string> MakeSlabFolder(const Config& config) {
  if (config.slab_dir.empty()) return std::string();
  struct statfs system = {};
  if (::statfs(config.slab_dir.c_str(), &system) != 0) {
    return Refused(config, fmt::format("{}; {}", MessageOf(ErrnoStatus(errno, "opening it")), kMount));
  }
  if (system.f_type != TMPFS_MAGIC) {
    return Refused(config, fmt::format("it is no folder in memory (file system type {:#x}), so shards "
                                       "would be written to a disk; {}",
                                       static_cast<uint64_t>(system.f_type), kMount));
  }
  const std::string folder = fmt::format("{}/{}.rank-{}", config.slab_dir, config.job, config.rank);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Refused(config, MessageOf(ErrnoStatus(errno, "making " + folder)) +
                               kWritable);
  }
  if (const auto why = WhyPathIsUnsafe(config.slab_dir, {::geteuid()})) {
    return Refused(config, *why + ", so another user could put files in the place of shards; choose a "
                                  "folder of this user or root's");
  }
  struct stat info = {};
  if (::lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & 077) != 0) {
    return Refused(config, folder + " must be a folder of this user that nobody else can enter (mode "
                                    "0700); remove it, or choose another --job");
  }
  // Also where it is mounted read-only, which keeps root from writing, too.
  if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return Refused(config, MessageOf(ErrnoStatus(errno, "writing to " + folder)) + kWritable);
  }
  return folder;
}

absl::Status RefuseSlabDirOnGpu(const Config& config) {
  if (config.slab_dir.empty()) return absl::OkStatus();
  return Refused(config, "shards are in the memory of a GPU, which is no file; leave it out, or use "
                         "--memory host");
}

absl::StatusOr<uint64_t> SlabFolderBytes(const Config& config, const std::string& folder,
                                         uint64_t kept) {
  struct statvfs room = {};
  if (::statvfs(folder.c_str(), &room) != 0) {
    return ErrnoStatus(errno, "asking how much room is in " + folder);
  }
  const uint64_t free = room.f_bavail * room.f_frsize / config.local_size;
  CKPTD_ASSIGN_OR_RETURN(const uint64_t wanted, ParseBudget(config.memory_budget, free, kept));
  if (wanted >= kHugePageBytes && wanted <= free + kept) return free;
  return Refused(config, fmt::format("there are {:.1f} MB for each of the host's {} daemons, and "
                                     "--memory-budget {} needs {:.1f} MB; {}, or lower the budget",
                                     static_cast<double>(free + kept) / 1e6, config.local_size,
                                     config.memory_budget,
                                     static_cast<double>(std::max(wanted, kHugePageBytes)) / 1e6,
                                     kEnlarge));
}

}  // namespace ckptd
