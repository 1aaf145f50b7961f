// One gRPC connection, and how calls are made on it. Includes gRPC, so only the .cc files of this
// folder include it.
#ifndef CKPTD_CLIENT_CPP_CHANNEL_H_
#define CKPTD_CLIENT_CPP_CHANNEL_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <chrono>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/address.h"
#include "client/cpp/client.h"
#include "client/cpp/status_from_grpc.h"

namespace ckptd {
inline namespace client {

struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  Address address;
  Timeout call_timeout{30'000};
  Timeout gone_timeout{8'000};
};

// A connection that answers. Errors: Unavailable or PermissionDenied DAEMON_UNREACHABLE with the
// address and how it was chosen.
absl::StatusOr<Connection> OpenConnection(const Address& address, const ConnectOptions& options);

inline void SetDeadline(grpc::ClientContext& context, Timeout timeout) {
  context.set_deadline(std::chrono::system_clock::now() + timeout);
}

// One unary call with a deadline. `doing` is the beginning of the error's sentence.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(const Connection& connection, Stub& stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, std::string_view doing, Timeout timeout) {
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  if (!status.ok()) return StatusFromGrpc(status, doing, connection.address);
  return response;
}

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_CHANNEL_H_
