// One gRPC server on one socket. It refuses an address that is in use, and replaces a stale socket.
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

// The destructor stops it (calls in progress have 1 s) and removes its socket. The daemon owns
// it.
class GrpcServer {
 public:
  struct Options {
    // unix:/absolute/path (made 0600) or host:port (port 0: any).
    std::string address;
    // Limit of one message. Longer messages, and compressed ones, end their call.
    int max_receive_bytes = 4 << 20;
    int max_threads = 64;
    std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;  // null: plain text
    // Limit of messages that are arriving, on all connections together. Beyond it, calls end with
    // ResourceExhausted, but not always those that caused it. 0: no limit.
    size_t max_held_bytes = 0;
    // For callers that ask one thing and are strangers, as probes over TCP: no reflection, few
    // calls on a connection, and idle connections are closed. The others keep their share of this
    // process's descriptors.
    bool only_probes = false;
  };
  // `services` must outlive the server. Errors: FailedPrecondition CONFIG_INVALID if another
  // daemon holds the address, or something else has its path; ResourceExhausted NO_MEMORY on a
  // full file system; those of FileLock, UnixListener, ListenTcp.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      Options options, const std::vector<grpc::Service*>& services);
  ~GrpcServer();
  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  // The port that was bound (TCP).
  int port() const { return tcp_.port; }
  void Shutdown(std::chrono::milliseconds patience);

 private:
  using Connections = grpc::experimental::ExternalConnectionAcceptor;

  GrpcServer() = default;
  absl::Status Listen(const std::string& address);
  int Listener() const { return tcp_.socket.valid() ? tcp_.socket.get() : unix_.get(); }

  FileLock lock_;      // next to a Unix socket, as long as it is served
  UnixListener unix_;  // one of these two is set
  TcpListener tcp_;
  std::unique_ptr<Connections> connections_;  // accepts for gRPC
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_GRPC_SERVER_H_
