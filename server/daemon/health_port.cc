#include "server/daemon/health_port.h"

#include <string>

#include "common/base/status.h"
#include "server/daemon/network.h"

namespace ckptd {
namespace {

// Strangers may reach this port. A request is a name.
constexpr int kMaxRequest = 4096;
constexpr size_t kMaxRequests = size_t{1} << 20;
constexpr int kMaxThreads = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> StartHealthServer(const Config& config,
                                                              HealthServiceImpl& service) {
  CKPTD_ASSIGN_OR_RETURN(const std::string address, ListenAddress(config.health_port));
  if (address.empty()) return nullptr;
  return GrpcServer::Start({.address = address,
                            .max_receive_bytes = kMaxRequest,
                            .max_threads = kMaxThreads,
                            .max_held_bytes = kMaxRequests,
                            .only_probes = true},
                           {&service});
}

}  // namespace ckptd
