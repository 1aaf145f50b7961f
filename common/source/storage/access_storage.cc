#include "common/source/storage/access_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/storage/permission.h"

namespace ckptd {
namespace {

constexpr std::string_view kProc = "/proc/";
constexpr int kAttempts = 16;  // while folders are renamed, the kernel asks to try again

absl::Status OutsideRoots(const std::string& path) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kSourceOutsideRoots,
                   fmt::format("reading {}: it does not lie in a folder of --allow-root, or a link in "
                               "it leads out; name it by its path in one of them (links inside must "
                               "be relative), or have the daemon started with another --allow-root",
                               path),
                   {{"file", path}});
}

// The part of `path` behind "root/"; "." for the root itself; empty where it is not below it.
std::string Below(const std::string& root, const std::string& path) {
  if (path == root) return ".";
  const std::string prefix = root == "/" ? root : root + "/";
  return path.starts_with(prefix) ? path.substr(prefix.size()) : std::string();
}

// Invalid on an error, which errno has; EXDEV: it leads out.
UniqueFd OpenBeneath(const std::string& root, const std::string& rest) {
  const UniqueFd folder(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return {};
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (int attempt = 0;; ++attempt) {
    UniqueFd found(static_cast<int>(
        ::syscall(SYS_openat2, folder.get(), rest.c_str(), &how, sizeof(how))));
    if (found.valid() || errno != EAGAIN || attempt == kAttempts) return found;
  }
}

bool IsSameFile(const UniqueFd& a, const UniqueFd& b) {
  struct stat first = {};
  struct stat second = {};
  return ::fstat(a.get(), &first) == 0 && ::fstat(b.get(), &second) == 0 &&
         first.st_ino == second.st_ino && first.st_dev == second.st_dev;
}

}  // namespace

const std::vector<std::string>& AccessStorage::roots() const {
  static const std::vector<std::string> kNone;
  return access_.rules == nullptr ? kNone : access_.rules->roots;
}

PassedFiles::Descriptor AccessStorage::Passed(const std::string& path) const {
  return access_.rules == nullptr ? nullptr : access_.rules->passed.Find(access_.owner(), path);
}

// Nothing in a folder is sealed.
bool AccessStorage::IsOffer(const std::string& path) const {
  if (access_.guest.has_value() || !path.starts_with(kProc)) return false;
  const absl::StatusOr<OpenFile> file = OpenRegular(path);
  return file.ok() && IsSealedMemory(file->fd.get());
}

absl::StatusOr<UniqueFd> AccessStorage::ReachInRoots(const std::string& path) const {
  for (const std::string& root : roots()) {
    const std::string rest = Below(root, path);
    if (rest.empty()) continue;
    UniqueFd found = OpenBeneath(root, rest);
    if (found.valid()) return found;
    if (errno != EXDEV) return Error(path, errno);
  }
  return OutsideRoots(path);
}

absl::StatusOr<UniqueFd> AccessStorage::Reach(const std::string& path) const {
  if (!access_.guest.has_value()) return ReachInRoots(path);
  UniqueFd inside;
  if (!roots().empty()) {
    CKPTD_ASSIGN_OR_RETURN(inside, ReachInRoots(path));
  }
  CKPTD_ASSIGN_OR_RETURN(UniqueFd reached, OpenAsCaller(path, *access_.guest));
  // Its name led to two files, one after the other: neither is known to pass both checks.
  if (inside.valid() && !IsSameFile(inside, reached)) return OutsideRoots(path);
  return reached;
}

absl::Status AccessStorage::List(const std::string& folder,
                                 absl::FunctionRef<bool(std::string_view name)> visit) const {
  if (access_.rules != nullptr) {
    const std::vector<std::string> passed = access_.rules->passed.List(access_.owner(), folder);
    for (const std::string& name : passed) {
      if (!visit(name)) return absl::OkStatus();
    }
    if (!passed.empty()) return absl::OkStatus();
  }
  if (Unlimited()) return PosixStorage::List(folder, visit);
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd reached, Reach(folder));
  if (access_.guest.has_value()) {
    CKPTD_RETURN_IF_ERROR(CheckCallerMayRead(folder, reached.get(), *access_.guest));
  }
  return ListAt(fmt::format("/proc/self/fd/{}", reached.get()), folder, visit);
}

absl::StatusOr<Storage::Found> AccessStorage::Stat(const std::string& path) const {
  if (const PassedFiles::Descriptor passed = Passed(path); passed != nullptr) {
    return StatOpen(path, passed->get());
  }
  if (access_.IsPassed(path)) {
    Found folder;
    folder.identity.path = path;
    folder.is_folder = true;
    return folder;
  }
  if (Unlimited() || IsOffer(path)) return PosixStorage::Stat(path);
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd reached, Reach(path));
  return StatOpen(path, reached.get());
}

absl::StatusOr<std::shared_ptr<const ReadableObject>> AccessStorage::Open(
    const std::string& path) const {
  if (const PassedFiles::Descriptor passed = Passed(path); passed != nullptr) {
    UniqueFd own(::fcntl(passed->get(), F_DUPFD_CLOEXEC, 0));
    if (!own.valid()) return Error(path, errno);
    CKPTD_ASSIGN_OR_RETURN(OpenFile file, AsRegular(path, std::move(own)));
    return MakeObject(std::move(file));
  }
  if (access_.IsPassed(path)) return NotRegular(path, S_IFDIR);
  if (Unlimited() || IsOffer(path)) return processes_.Open(path);
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd reached, Reach(path));
  if (access_.guest.has_value()) {
    CKPTD_RETURN_IF_ERROR(CheckCallerMayRead(path, reached.get(), *access_.guest));
  }
  CKPTD_ASSIGN_OR_RETURN(OpenFile file, OpenAgain(path, reached.get()));
  return MakeObject(std::move(file));
}

}  // namespace ckptd
