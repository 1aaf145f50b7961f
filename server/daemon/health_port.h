// The TCP port for probes (--health-port): grpc.health.v1 and nothing else, in plain text, since
// kubelet speaks neither Unix sockets nor TLS with certificates.
#ifndef CKPTD_SERVER_DAEMON_HEALTH_PORT_H_
#define CKPTD_SERVER_DAEMON_HEALTH_PORT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/daemon/config.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/health_service.h"

namespace ckptd {

// Null if the settings name no port. `service` must outlive the server. Errors: CONFIG_INVALID.
absl::StatusOr<std::unique_ptr<GrpcServer>> StartHealthServer(const Config& config,
                                                              HealthServiceImpl& service);

// The answers of `ckptd launch`: it asks the daemons of this host one after the other, at their
// workload sockets, and has the first answer that is not kServing. A daemon that does not answer within a
// second is kNotServing. Thread-safe.
class HostHealth {
 public:
  explicit HostHealth(const std::vector<std::string>& sockets);
  ServingStatus Ask(const std::string& service) const;

 private:
  std::vector<std::unique_ptr<grpc::health::v1::Health::Stub>> daemons_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_HEALTH_PORT_H_
