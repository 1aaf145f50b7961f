#include "common/base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

bool IsAt(const UniqueFd& file, const std::string& path) {
  struct stat held = {};
  struct stat there = {};
  return ::fstat(file.get(), &held) == 0 && ::lstat(path.c_str(), &there) == 0 &&
         held.st_dev == there.st_dev && held.st_ino == there.st_ino;
}

// Space and descriptors may become free, so those errors stay retryable. Others need a change by
// the user.
absl::Status CannotBeMade(int error, const std::string& path) {
  const absl::Status status = ErrnoStatus(error, "creating " + path);
  if (status.code() == absl::StatusCode::kResourceExhausted) return status;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   MessageOf(status) + "; see what is there, and whether this user may write in "
                                       "that folder",
                   {{"file", path}});
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Take(const std::string& path) {
  while (true) {
    UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return CannotBeMade(errno, path);
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return ErrnoStatus(errno, "locking " + path);
      return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                       "locking " + path + ": another process has it; stop that one, or choose "
                                          "another path",
                       {{"file", path}});
    }
    // The previous holder may have removed the file meanwhile. Then the next process would lock
    // another file.
    if (IsAt(file, path)) return FileLock(std::move(file), path);
  }
}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  if (this != &other) {
    Release();
    file_ = std::move(other.file_);
    path_ = std::move(other.path_);
  }
  return *this;
}

bool FileLock::IsThere() const { return held() && IsAt(file_, path_); }

absl::Status FileLock::Write(const std::string& text) const {
  const auto size = static_cast<ssize_t>(text.size());
  if (::ftruncate(file_.get(), 0) == 0 && ::pwrite(file_.get(), text.data(), text.size(), 0) == size) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, "writing to " + path_);
}

void FileLock::Touch() const {
  if (held()) ::futimens(file_.get(), nullptr);
}

void FileLock::Release() {
  if (!held()) return;
  if (IsAt(file_, path_)) ::unlink(path_.c_str());
  file_.Reset();
}

}  // namespace ckptd
