#include "client/cpp/admin.h"

#include <google/protobuf/util/time_util.h>

#include <utility>

#include "ckptd/v1/admin_service.grpc.pb.h"
#include "client/cpp/channel.h"
#include "common/base/status.h"

namespace ckptd {
inline namespace client {
namespace {

using google::protobuf::util::TimeUtil;
using Stub = v1::AdminService::Stub;

}  // namespace

struct AdminClient::Impl {
  explicit Impl(Connection connected)
      : connection(std::move(connected)), stub(connection.channel) {}

  template <typename Request, typename Response>
  absl::StatusOr<Response> Do(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, std::string_view doing,
                              Timeout extra = Timeout(0)) {
    return Call(connection, stub, method, request, doing, connection.call_timeout + extra);
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

absl::StatusOr<v1::UnloadCheckpointResponse> AdminClient::Unload(const std::string& name,
                                                                 bool force, bool idle) {
  v1::UnloadCheckpointRequest request;
  request.set_name(name);
  request.set_force(force);
  request.set_idle(idle);
  return impl_->Do(&Stub::UnloadCheckpoint, request, "unloading " + name);
}

absl::StatusOr<v1::Checkpoint> AdminClient::Pin(const std::string& name, bool pinned) {
  v1::PinCheckpointRequest request;
  request.set_name(name);
  request.set_pinned(pinned);
  CKPTD_ASSIGN_OR_RETURN(v1::PinCheckpointResponse response,
                         impl_->Do(&Stub::PinCheckpoint, request, "pinning " + name));
  return std::move(*response.mutable_checkpoint());
}

absl::StatusOr<v1::ListLeasesResponse> AdminClient::Leases() {
  return impl_->Do(&Stub::ListLeases, v1::ListLeasesRequest(), "listing leases");
}

absl::StatusOr<v1::GetDaemonInfoResponse> AdminClient::Info() {
  return impl_->Do(&Stub::GetDaemonInfo, v1::GetDaemonInfoRequest(),
                   "asking the daemon about itself");
}

absl::StatusOr<v1::DrainDaemonResponse> AdminClient::Drain(std::optional<Timeout> wait) {
  v1::DrainDaemonRequest request;
  if (wait.has_value()) {
    *request.mutable_timeout() = TimeUtil::MillisecondsToDuration(wait->count());
  }
  return impl_->Do(&Stub::DrainDaemon, request, "draining the daemon", wait.value_or(Timeout(0)));
}

absl::StatusOr<v1::TrimMemoryResponse> AdminClient::Trim() {
  return impl_->Do(&Stub::TrimMemory, v1::TrimMemoryRequest(), "giving free memory back");
}

absl::StatusOr<v1::SetLogLevelResponse> AdminClient::SetLogLevel(const std::string& level) {
  v1::SetLogLevelRequest request;
  request.set_level(level);
  return impl_->Do(&Stub::SetLogLevel, request, "setting the log level");
}

}  // namespace client
}  // namespace ckptd
