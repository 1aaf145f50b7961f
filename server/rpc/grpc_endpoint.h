// One gRPC server that is given its connections, with reflection.
#ifndef CKPTD_SERVER_RPC_GRPC_ENDPOINT_H_
#define CKPTD_SERVER_RPC_GRPC_ENDPOINT_H_

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

// The destructor ends it; calls in progress have 1 s. Thread-safe, but for Shutdown.
class GrpcEndpoint {
 public:
  struct Options {
    std::string address;  // for people
    // Limit of one message. Longer messages, and compressed ones, end their call.
    int max_receive_bytes = 4 << 20;
    std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: plain text
    // Limits threads, and messages that are arriving. No two endpoints may share one: gRPC 1.51 ends
    // the process where a new one finds no thread left in it.
    std::shared_ptr<grpc::ResourceQuota> quota;
    // For callers that ask one thing and are strangers, as probes over TCP: no reflection, few
    // calls on a connection, and idle connections are closed.
    bool only_probes = false;
    // Is told of each call, by the other end as gRPC writes it. Thread-safe; may be null.
    std::function<void(std::string_view peer)> on_call = nullptr;
  };
  // `services` must outlive it. Errors: Internal, where gRPC does not start.
  static absl::StatusOr<std::unique_ptr<GrpcEndpoint>> Start(
      const Options& options, const std::vector<grpc::Service*>& services);
  // Answers every call with this error, but for reflection.
  static absl::StatusOr<std::unique_ptr<GrpcEndpoint>> StartRefusing(const Options& options,
                                                                     const absl::Status& why);
  ~GrpcEndpoint();
  GrpcEndpoint(const GrpcEndpoint&) = delete;
  GrpcEndpoint& operator=(const GrpcEndpoint&) = delete;

  // Owns the connection from now on.
  void Take(UniqueFd connection);
  void Shutdown(std::chrono::milliseconds patience);

 private:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  GrpcEndpoint() = default;
  absl::Status Build(const Options& options, const std::vector<grpc::Service*>& services);

  std::unique_ptr<grpc::CallbackGenericService> refusal_;  // null: it serves
  std::unique_ptr<Connections> connections_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_GRPC_ENDPOINT_H_
