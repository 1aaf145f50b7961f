// Checks the settings of a daemon, each by itself and in combination.
#ifndef CKPTD_SERVER_DAEMON_CHECK_CONFIG_H_
#define CKPTD_SERVER_DAEMON_CHECK_CONFIG_H_

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckptd {

// Errors: InvalidArgument CONFIG_INVALID, which names the setting and its valid values.
absl::Status CheckConfig(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_CHECK_CONFIG_H_
