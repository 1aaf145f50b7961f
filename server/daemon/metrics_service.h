// What --metrics serves: a daemon's own metrics, and those of all daemons of a launch.
#ifndef CKPTD_SERVER_DAEMON_METRICS_SERVICE_H_
#define CKPTD_SERVER_DAEMON_METRICS_SERVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/daemon/metrics_port.h"
#include "server/metrics/recorder.h"
#include "server/node/node.h"

namespace ckptd {

// Null if the settings ask for none; else `recorder` is not null. `node` and `recorder` must outlive
// it. Errors: those of MetricsPort.
absl::StatusOr<std::unique_ptr<MetricsPort>> ServeMetrics(const Config& config, Node& node,
                                                          const MetricsRecorder* recorder);

// The same of the daemons of these ranks, which serve theirs at their sockets. One that does not
// answer is ckptd_daemon_up 0. Null also if each serves at its socket alone.
absl::StatusOr<std::unique_ptr<MetricsPort>> ServeHostMetrics(const Config& config,
                                                              std::vector<uint32_t> ranks);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_METRICS_SERVICE_H_
