#include "client/cpp/admin.h"

#include <utility>

#include "ckptd/v1/admin_service.grpc.pb.h"
#include "client/cpp/channel.h"
#include "client/cpp/convert.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

using Stub = v1::AdminService::Stub;

}  // namespace

struct AdminClient::Impl {
  explicit Impl(Connection connected)
      : connection(std::move(connected)), stub(connection.channel) {}

  template <typename Request, typename Response>
  absl::Status Do(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response, std::string_view doing,
                  Timeout extra = Timeout(0)) {
    return Call(connection, stub, method, request, response, doing,
                connection.call_timeout + extra);
  }

  Connection connection;
  Stub stub;
};

AdminClient::AdminClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
AdminClient::AdminClient(AdminClient&&) noexcept = default;
AdminClient& AdminClient::operator=(AdminClient&&) noexcept = default;
AdminClient::~AdminClient() = default;

absl::StatusOr<AdminClient> AdminClient::Connect(const ConnectOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const Address address,
                         ResolveAddress(options.address, ProcessEnvironment()));
  CKPTD_ASSIGN_OR_RETURN(Connection connection, OpenConnection(AdminAddress(address), options));
  return AdminClient(std::make_unique<Impl>(std::move(connection)));
}

absl::StatusOr<AdminClient::Unloaded> AdminClient::Unload(const std::string& name, bool force,
                                                          bool idle) {
  v1::UnloadCheckpointRequest request;
  request.set_name(name);
  request.set_force(force);
  request.set_idle(idle);
  v1::UnloadCheckpointResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::UnloadCheckpoint, request, response, "unloading " + name));
  return Unloaded{response.freed_bytes(), response.cancelled()};
}

absl::StatusOr<CheckpointInfo> AdminClient::Pin(const std::string& name, bool pinned) {
  v1::PinCheckpointRequest request;
  request.set_name(name);
  request.set_pinned(pinned);
  v1::PinCheckpointResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::PinCheckpoint, request, response, "pinning " + name));
  return FromProto(response.checkpoint());
}

absl::StatusOr<std::vector<LeaseInfo>> AdminClient::Leases() {
  v1::ListLeasesResponse response;
  CKPTD_RETURN_IF_ERROR(
      impl_->Do(&Stub::ListLeases, v1::ListLeasesRequest(), response, "listing leases"));
  std::vector<LeaseInfo> out;
  for (const auto& lease : response.leases()) out.push_back(FromProto(lease));
  return out;
}

absl::StatusOr<DaemonInfo> AdminClient::Info() {
  v1::GetDaemonInfoResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::GetDaemonInfo, v1::GetDaemonInfoRequest(), response,
                                  "asking the daemon about itself"));
  return FromProto(response);
}

absl::StatusOr<uint32_t> AdminClient::Drain(std::optional<Timeout> wait) {
  v1::DrainDaemonRequest request;
  if (wait.has_value()) *request.mutable_timeout() = ToProto(*wait);
  v1::DrainDaemonResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::DrainDaemon, request, response, "draining the daemon",
                                  wait.value_or(Timeout(0))));
  return response.remaining_leases();
}

absl::StatusOr<AdminClient::Trimmed> AdminClient::Trim() {
  v1::TrimMemoryResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::TrimMemory, v1::TrimMemoryRequest(), response,
                                  "giving free memory back"));
  return Trimmed{response.freed_bytes(), response.used_bytes(), response.lingering_bytes()};
}

absl::StatusOr<std::string> AdminClient::SetLogLevel(const std::string& level) {
  v1::SetLogLevelRequest request;
  request.set_level(level);
  v1::SetLogLevelResponse response;
  CKPTD_RETURN_IF_ERROR(
      impl_->Do(&Stub::SetLogLevel, request, response, "setting the log level"));
  return response.previous_level();
}

}  // namespace client
}  // namespace ckptd
