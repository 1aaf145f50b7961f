#include "common/source/storage/permission.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/statfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/storage/posix.h"

namespace ckptd {
namespace {

constexpr int kMostLinks = 40;  // as the kernel

// File systems where this kernel itself decides, by mode and access lists. Elsewhere a server (NFS),
// a process (FUSE) or each file by itself (proc) does.
constexpr uint64_t kZfs = 0x2FC12FC1;
constexpr uint64_t kLustre = 0x0BD00BD3;
constexpr uint64_t kBcachefs = 0xCA451A4E;
constexpr uint64_t kDecidedHere[] = {
    EXT4_SUPER_MAGIC,  XFS_SUPER_MAGIC,  BTRFS_SUPER_MAGIC, TMPFS_MAGIC,      OVERLAYFS_SUPER_MAGIC,
    F2FS_SUPER_MAGIC,  RAMFS_MAGIC,      SQUASHFS_MAGIC,    ISOFS_SUPER_MAGIC, EROFS_SUPER_MAGIC_V1,
    CEPH_SUPER_MAGIC,  kZfs,             kLustre,           kBcachefs,
};

constexpr uid_t kOverflowId = 65534;  // shown in place of ids that a user namespace lacks

// Whether ids that files and callers have are all known here, so that equal ones are the same.
bool KnowsAllIds() {
  static const bool known = [] {
    std::ifstream map("/proc/self/uid_map");
    uint64_t first = 0;
    uint64_t outside = 0;
    uint64_t count = 0;
    return static_cast<bool>(map >> first >> outside >> count) && count == UINT32_MAX;
  }();
  return known;
}

absl::Status Forbidden(const std::string& path, const Caller& caller, std::string_view why) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kSourceForbidden,
                   fmt::format("reading {} for uid {}: {}; give that user access, or have its process "
                               "pass its own open descriptor (the Python client does so with files "
                               "that it can open)",
                               path, caller.uid, why),
                   {{"file", path}});
}

// Why the mode alone does not say who may read it; empty: it does.
std::string_view WhyUndecided(int fd, const struct stat& info) {
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0) return "its file system cannot be asked";
  const auto type = static_cast<uint64_t>(static_cast<uint32_t>(system.f_type));
  if (std::count(std::begin(kDecidedHere), std::end(kDecidedHere), type) == 0) {
    return "its mode does not tell who may read on that kind of file system";
  }
  const bool overflows = info.st_uid == kOverflowId || info.st_gid == kOverflowId;
  if (overflows && !KnowsAllIds()) return "its owner is not known in this user namespace";
  const std::string path = fmt::format("/proc/self/fd/{}", fd);  // descriptors of O_PATH have none
  if (::getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) < 0 &&
      (errno == ENODATA || errno == EOPNOTSUPP)) {
    return {};
  }
  return "it has an access list (ACL), which is not judged here";
}

absl::Status Check(const std::string& path, int fd, const Caller& caller, Permission wanted) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return PosixStorage::Error(path, errno);
  const bool enters = wanted == Permission::kEnter;
  if (enters && !S_ISDIR(info.st_mode)) return PosixStorage::Error(path, ENOTDIR);
  if (const std::string_view why = WhyUndecided(fd, info); !why.empty()) {
    return Forbidden(path, caller, why);
  }
  if (ModeAllows(info, caller, wanted)) return absl::OkStatus();
  return Forbidden(path, caller, enters ? "that user may not enter a folder on the way"
                                        : "that user may not read it");
}

// The way from the root to a file, as the caller would go it.
class Walk {
 public:
  Walk(const std::string& path, const Caller& caller) : path_(path), caller_(caller) {}

  absl::StatusOr<UniqueFd> Run() {
    folders_.emplace_back(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folders_.back().valid()) return PosixStorage::Error(path_, errno);
    Follow(path_);
    while (!names_.empty()) {
      const std::string name = std::move(names_.back());
      names_.pop_back();
      CKPTD_RETURN_IF_ERROR(Step(name));
    }
    return std::move(folders_.back());
  }

 private:
  // The names of a path, or of a link's target, come next.
  void Follow(std::string_view path) {
    if (path.starts_with('/')) folders_.resize(1);
    std::vector<std::string> names;
    for (size_t at = 0; at < path.size();) {
      const size_t end = std::min(path.find('/', at), path.size());
      names.emplace_back(path.substr(at, end - at));
      at = end + 1;
    }
    names_.insert(names_.end(), names.rbegin(), names.rend());
  }

  absl::Status Step(const std::string& name) {
    if (name.empty() || name == ".") return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(Check(path_, folders_.back().get(), caller_, Permission::kEnter));
    if (name == "..") {
      if (folders_.size() > 1) folders_.pop_back();
      return absl::OkStatus();
    }
    UniqueFd next(::openat(folders_.back().get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat info = {};
    if (!next.valid() || ::fstat(next.get(), &info) != 0) return PosixStorage::Error(path_, errno);
    if (S_ISLNK(info.st_mode)) return StepThrough(next);
    folders_.push_back(std::move(next));
    return absl::OkStatus();
  }

  absl::Status StepThrough(const UniqueFd& link) {
    if (++links_ > kMostLinks) return PosixStorage::Error(path_, ELOOP);
    std::array<char, PATH_MAX> target = {};
    const ssize_t bytes = ::readlinkat(link.get(), "", target.data(), target.size());
    if (bytes < 0) return PosixStorage::Error(path_, errno);
    Follow({target.data(), static_cast<size_t>(bytes)});
    return absl::OkStatus();
  }

  const std::string& path_;
  const Caller& caller_;
  std::vector<UniqueFd> folders_;   // from the root down; the last may be a file
  std::vector<std::string> names_;  // that are still to come, the next one last
  int links_ = 0;
};

}  // namespace

bool ModeAllows(const struct stat& file, const Caller& caller, Permission wanted) {
  const bool member = file.st_gid == caller.gid ||
                      std::binary_search(caller.groups.begin(), caller.groups.end(), file.st_gid);
  const int shift = file.st_uid == caller.uid ? 6 : member ? 3 : 0;
  return ((file.st_mode >> shift) & static_cast<mode_t>(wanted)) != 0;
}

absl::StatusOr<UniqueFd> OpenAsCaller(const std::string& path, const Caller& caller) {
  return Walk(path, caller).Run();
}

absl::Status CheckCallerMayRead(const std::string& path, int fd, const Caller& caller) {
  return Check(path, fd, caller, Permission::kRead);
}

}  // namespace ckptd
