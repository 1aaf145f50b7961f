// Whether another user could read a file itself: what the kernel would say, from what a file says
// of itself.
#ifndef CKPTD_COMMON_SOURCE_STORAGE_PERMISSION_H_
#define CKPTD_COMMON_SOURCE_STORAGE_PERMISSION_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/caller.h"
#include "common/base/posix.h"

namespace ckptd {

enum class Permission : mode_t { kEnter = 1, kRead = 4 };

// By owner, group and mode alone, as POSIX has it: the first class that the caller is of decides.
// Pure. The caller is not root.
bool ModeAllows(const struct stat& file, const Caller& caller, Permission wanted);

// Opens the file or folder at `path` with O_PATH, if the caller could get there. Links are followed
// one by one, and each folder on the way is asked on its descriptor, so that a renamed one cannot
// mislead. Where the mode alone does not decide, it refuses: access lists, file systems whose server
// or process decides, ids that are not known here. Errors: PermissionDenied SOURCE_FORBIDDEN; those
// of PosixStorage. Fact "file".
absl::StatusOr<UniqueFd> OpenAsCaller(const std::string& path, const Caller& caller);
// OK if the caller may read the file, or list the folder, that is open as `fd`. Errors: the same.
absl::Status CheckCallerMayRead(const std::string& path, int fd, const Caller& caller);

}  // namespace ckptd

#endif  // CKPTD_COMMON_SOURCE_STORAGE_PERMISSION_H_
