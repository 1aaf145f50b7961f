// Gives one process of a host the ownership of a path.
#ifndef CKPTD_COMMON_BASE_FILE_LOCK_H_
#define CKPTD_COMMON_BASE_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// Holds an flock(2) on a file, which it makes with mode 0600 and removes at its end. The kernel
// releases the lock when the process ends, however it ends. A remaining file is used again.
class FileLock {
 public:
  // Does not wait. Errors: FailedPrecondition CONFIG_INVALID if another process, or another lock
  // of this one, holds it; InvalidArgument CONFIG_INVALID if the file cannot be made;
  // ResourceExhausted.
  static absl::StatusOr<FileLock> Take(const std::string& path);
  FileLock() = default;
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock() { Release(); }

  bool held() const { return file_.valid(); }
  // Whether the file is still at its path. Somebody may have removed it, or its folder.
  bool IsThere() const;
  // Makes `text` the file's contents.
  absl::Status Write(const std::string& text) const;
  // Sets the file's time of change to now. A holder that does so at times shows that it is in use.
  void Touch() const;
  // Removes the file, then releases the lock.
  void Release();

 private:
  FileLock(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  UniqueFd file_;
  std::string path_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_FILE_LOCK_H_
