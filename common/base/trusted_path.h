// Finds users who could put something else in the place that a path names. Stateless, thread-safe.
#ifndef CKPTD_COMMON_BASE_TRUSTED_PATH_H_
#define CKPTD_COMMON_BASE_TRUSTED_PATH_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace ckptd {

// Why a user who is neither root nor one of `trusted` could change what `path` leads to; nothing if
// nobody could. Looks at each folder and link on the way, and at the path itself: each must
// belong to a trusted user, and others may write only in folders that are sticky; a user's private group is not "others". A mount point of
// root's may be open to all, as volumes of pods are: a user who writes there is let in by the one who
// mounted it. The rule is that of sshd's StrictModes, with sticky folders. Something that cannot be
// looked at is a reason, too. `path` may be relative.
std::optional<std::string> WhyPathIsUnsafe(const std::string& path, std::vector<uid_t> trusted);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_TRUSTED_PATH_H_
