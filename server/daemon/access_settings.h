// The settings of who else may attach, and of where sources may lie.
#ifndef CKPTD_SERVER_DAEMON_ACCESS_SETTINGS_H_
#define CKPTD_SERVER_DAEMON_ACCESS_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/protocol/access_policy.h"

namespace ckptd {

// For this process's user. Looks names up in this system's databases. Errors: InvalidArgument
// CONFIG_INVALID.
absl::StatusOr<AccessPolicy> ReadAccessPolicy(const Config& config);

// Errors: InvalidArgument CONFIG_INVALID for what is no folder here, and where the kernel cannot
// keep links inside of one (before Linux 5.6).
absl::StatusOr<std::vector<std::string>> ReadAllowedRoots(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_ACCESS_SETTINGS_H_
