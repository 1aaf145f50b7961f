// The health of all daemons of a host, which `ckptd launch` serves on --health-port.
#ifndef CKPTD_SERVER_RPC_HOST_HEALTH_H_
#define CKPTD_SERVER_RPC_HOST_HEALTH_H_

#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "server/node/health.h"

namespace ckptd {

// Asks the daemons one after the other, at their workload sockets, and has the first answer that is
// not kServing. A daemon that does not answer within a second is kNotServing. Thread-safe.
class HostHealth {
 public:
  explicit HostHealth(const std::vector<std::string>& sockets);
  ServingStatus Ask(const std::string& service) const;

 private:
  std::vector<std::unique_ptr<grpc::health::v1::Health::Stub>> daemons_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_HOST_HEALTH_H_
