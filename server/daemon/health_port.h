// The TCP port for probes (--health-port): grpc.health.v1 and nothing else, in plain text, since
// kubelet speaks neither Unix sockets nor TLS with certificates.
#ifndef CKPTD_SERVER_DAEMON_HEALTH_PORT_H_
#define CKPTD_SERVER_DAEMON_HEALTH_PORT_H_

#include <memory>

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/health_service.h"

namespace ckptd {

// Null if the settings name no port. `service` must outlive the server. Errors: CONFIG_INVALID.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartHealthServer(const Config& config,
                                                              HealthServiceImpl& service);

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_HEALTH_PORT_H_
