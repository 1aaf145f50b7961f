// What the settings of a daemon must be, by themselves and together.
#ifndef CKPTD_SERVER_DAEMON_CHECK_CONFIG_H_
#define CKPTD_SERVER_DAEMON_CHECK_CONFIG_H_

#include "absl/status/status.h"
#include "server/daemon/config.h"

namespace ckptd {

// Errors: InvalidArgument CONFIG_INVALID, which names the setting and what it may be.
absl::Status CheckConfig(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_CHECK_CONFIG_H_
