// Who may own a path, among processes of one host.
#ifndef CKPTD_COMMON_BASE_FILE_LOCK_H_
#define CKPTD_COMMON_BASE_FILE_LOCK_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// Holds an flock(2) on a file that it makes, mode 0600, and removes at its end. The kernel lets
// go of it when the process ends, however that is; the file that stays then is taken over.
class FileLock {
 public:
  // Does not wait. Errors: FailedPrecondition CONFIG_INVALID while another process, or another
  // lock of this one, has it; InvalidArgument CONFIG_INVALID where it cannot be made;
  // ResourceExhausted.
  static absl::StatusOr<FileLock> Take(const std::string& path);
  FileLock() = default;
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock() { Release(); }

  bool held() const { return file_.valid(); }
  // Removes the file, then lets go.
  void Release();

 private:
  FileLock(UniqueFd file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}

  UniqueFd file_;
  std::string path_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_FILE_LOCK_H_
