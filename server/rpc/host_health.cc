#include "server/rpc/host_health.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>

#include <chrono>

#include "common/base/percent.h"

namespace ckptd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr std::chrono::seconds kDaemonAnswers{1};
// A daemon that was restarted is found again within this time.
constexpr int kReconnectMs = 100;

std::unique_ptr<grpc::health::v1::Health::Stub> Connect(const std::string& socket) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  return grpc::health::v1::Health::NewStub(grpc::CreateCustomChannel(
      UnixTarget(socket), grpc::InsecureChannelCredentials(), arguments));
}

ServingStatus AskOne(grpc::health::v1::Health::Stub& daemon, const std::string& service) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kDaemonAnswers);
  HealthCheckRequest request;
  request.set_service(service);
  HealthCheckResponse response;
  const grpc::Status status = daemon.Check(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return ServingStatus::kUnknown;
  const bool serving = status.ok() && response.status() == HealthCheckResponse::SERVING;
  return serving ? ServingStatus::kServing : ServingStatus::kNotServing;
}

}  // namespace

HostHealth::HostHealth(const std::vector<std::string>& sockets) {
  for (const std::string& socket : sockets) daemons_.push_back(Connect(socket));
}

ServingStatus HostHealth::Ask(const std::string& service) const {
  for (const auto& daemon : daemons_) {
    const ServingStatus status = AskOne(*daemon, service);
    if (status != ServingStatus::kServing) return status;
  }
  return ServingStatus::kServing;
}

}  // namespace ckptd
