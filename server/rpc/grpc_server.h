// One gRPC server on one socket, with health and reflection. A live socket or
// port is refused, a stale socket is recovered.
#ifndef CKPTD_SERVER_RPC_GRPC_SERVER_H_
#define CKPTD_SERVER_RPC_GRPC_SERVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd_passing.h"
#include "common/base/file_lock.h"
#include "server/rpc/acceptor.h"

namespace ckptd {

// Stops (deadline: 1 s for calls under way) and removes its socket on destruction.
class GrpcServer {
 public:
  struct Options {
    // unix:/absolute/path (made 0600) or host:port (port 0: any).
    std::string address;
    // Of one message; longer ones, and compressed ones, end their call.
    int max_receive_bytes = 4 << 20;
    int max_threads = 64;
    std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: plain
    // Of messages that are arriving, on all connections together: what goes beyond ends
    // calls, not always those that bring it, with ResourceExhausted. 0: any number.
    size_t max_held_bytes = 0;
  };
  // `services` outlive the server. Errors: FailedPrecondition
  // CONFIG_INVALID when another daemon holds the address, or something else lies there;
  // ResourceExhausted NO_MEMORY on a full file system; those of FileLock, UnixListener, ListenTcp.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      Options options, const std::vector<grpc::Service*>& services);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // The port that was bound (TCP).
  int port() const { return tcp_.port; }
  // What grpc.health.v1 says from now on.
  void SetServing(bool serving);
  void Shutdown(std::chrono::milliseconds patience);

 private:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  GrpcServer() = default;
  absl::Status Listen(const std::string& address);
  int Listener() const { return tcp_.socket.valid() ? tcp_.socket.get() : unix_.get(); }

  FileLock lock_;  // beside a Unix socket, for as long as it is served
  UnixListener unix_;  // one of these two
  TcpListener tcp_;
  std::unique_ptr<Connections> connections_;  // where gRPC takes them
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_GRPC_SERVER_H_
