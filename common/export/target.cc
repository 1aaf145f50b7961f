#include "common/export/target.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kFolderMode = 0777;  // the kernel applies the umask

absl::Status Invalid(absl::StatusCode code, const std::string& path, std::string_view why) {
  return MakeError(code, reason::kTargetInvalid, fmt::format("writing {}: {}", path, why),
                   {{"file", path}});
}

absl::Status Failed(const std::string& path, int error) {
  return WithFact(ErrnoStatus(error, "writing " + path), "file", path);
}

absl::Status SyncFolder(const std::string& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  return fd.valid() && ::fsync(fd.get()) == 0 ? absl::OkStatus() : Failed(folder, errno);
}

absl::Status CheckFree(const std::string& path, Target::Kind kind) {
  std::error_code error;
  const fs::file_status found = fs::symlink_status(path, error);
  if (!fs::exists(found)) return absl::OkStatus();
  if (kind == Target::Kind::kFolder) {
    if (fs::is_directory(found) && fs::is_empty(path, error)) return absl::OkStatus();
    return Invalid(absl::StatusCode::kAlreadyExists, path,
                   fs::is_directory(found) ? "that folder is not empty; name a new one"
                                           : "that is no folder; name a new one");
  }
  if (kind == Target::Kind::kReplaced && !fs::is_directory(found)) return absl::OkStatus();
  return Invalid(absl::StatusCode::kAlreadyExists, path,
                 "it exists; remove it, or name another file");
}

absl::Status CheckRoom(const std::string& path, const std::string& parent, uint64_t bytes) {
  struct statvfs info = {};
  if (::statvfs(parent.c_str(), &info) != 0) return Failed(path, errno);
  const uint64_t room = uint64_t{info.f_bavail} * info.f_frsize;
  if (room >= bytes) return absl::OkStatus();
  return Invalid(absl::StatusCode::kResourceExhausted, path,
                 fmt::format("{} MB are needed and {} MB are free there; make room, or name another "
                             "place",
                             bytes / 1'000'000 + 1, room / 1'000'000));
}

// Removes what a killed run left.
absl::Status RemoveContents(const std::string& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    fs::remove_all(entry.path(), error);
    if (error) break;
  }
  return error ? Failed(folder, error.value()) : absl::OkStatus();
}

}  // namespace

absl::Status CheckFolderAbove(const std::string& path) {
  const fs::path above = fs::path(path).parent_path();
  std::error_code ignored;
  if (above.empty() || fs::is_directory(above, ignored)) return absl::OkStatus();
  return Invalid(absl::StatusCode::kNotFound, path,
                 fmt::format("there is no folder {}; create it first", above.string()));
}

absl::StatusOr<Target> Target::Create(const std::string& path, Kind kind, uint64_t bytes) {
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  const fs::path whole(plain);
  const std::string name = whole.filename().string();
  if (name.empty() || name == "." || name == "..") {
    return Invalid(absl::StatusCode::kInvalidArgument, path,
                   "a file or folder needs a name of its own there");
  }
  const std::string parent = whole.has_parent_path() ? whole.parent_path().string() : ".";
  CKPTD_RETURN_IF_ERROR(CheckFree(plain, kind));
  CKPTD_RETURN_IF_ERROR(CheckFolderAbove(plain));
  CKPTD_RETURN_IF_ERROR(CheckRoom(plain, parent, bytes));
  Target target(plain, kind, fmt::format("{}/.{}.ckptd-partial", parent, name));
  CKPTD_RETURN_IF_ERROR(target.Lock());
  CKPTD_RETURN_IF_ERROR(RemoveContents(target.folder_));
  return target;
}

absl::Status Target::Lock() {
  if (::mkdir(folder_.c_str(), kFolderMode) != 0 && errno != EEXIST) return Failed(path_, errno);
  UniqueFd fd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid()) return Failed(folder_, errno);
  // File systems that lock no folders have nobody to tell apart.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Invalid(absl::StatusCode::kAlreadyExists, path_,
                   fmt::format("another process is writing it, into {}; wait for that, or name "
                               "another target",
                               folder_));
  }
  lock_ = std::move(fd);
  return absl::OkStatus();
}

Target::Target(Target&& other) noexcept
    : path_(std::move(other.path_)),
      kind_(other.kind_),
      folder_(std::move(other.folder_)),
      lock_(std::move(other.lock_)) {}

Target::~Target() {
  if (!lock_.valid()) return;
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

absl::Status Target::Commit() {
  CKPTD_RETURN_IF_ERROR(SyncFolder(folder_));
  const bool is_folder = kind_ == Kind::kFolder;
  const std::string from = is_folder ? folder_ : PathOf(fs::path(path_).filename().string());
  CKPTD_RETURN_IF_ERROR(CheckFree(path_, kind_));
  if (::rename(from.c_str(), path_.c_str()) != 0) return Failed(path_, errno);
  if (!is_folder) ::rmdir(folder_.c_str());
  lock_.Reset();
  return SyncFolder(fs::path(path_).has_parent_path() ? fs::path(path_).parent_path().string()
                                                      : ".");
}

}  // namespace ckptd
