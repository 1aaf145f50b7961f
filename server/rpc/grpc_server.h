// A gRPC server on one socket. It refuses an address that is in use, and replaces a stale socket.
// On a Unix socket the kernel says whose each connection is. gRPC 1.51 does not tell its services,
// so each guest has an endpoint of its own, with services that know for whom they are.
#ifndef CKPTD_SERVER_RPC_GRPC_SERVER_H_
#define CKPTD_SERVER_RPC_GRPC_SERVER_H_

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/caller.h"
#include "common/base/fd_passing.h"
#include "common/base/file_lock.h"
#include "common/base/mutex.h"
#include "server/protocol/access_policy.h"
#include "server/rpc/acceptor.h"
#include "server/rpc/connection_table.h"
#include "server/rpc/grpc_endpoint.h"

namespace ckptd {

// The destructor stops it (calls in progress have 1 s) and removes its socket. The daemon owns
// it.
class GrpcServer {
 public:
  using Services = std::vector<std::unique_ptr<grpc::Service>>;
  struct Options {
    // unix:/absolute/path (made 0600, or 0660 for the guests' group) or host:port (port 0: any).
    std::string address;
    // As in GrpcEndpoint.
    int max_receive_bytes = 4 << 20;
    int max_threads = 64;
    std::shared_ptr<grpc::ServerCredentials> credentials = nullptr;
    // Limit of messages that are arriving, on all connections together. Beyond it, calls end with
    // ResourceExhausted, but not always those that caused it. 0: no limit. Each guest has as much
    // once more, and as many threads.
    size_t max_held_bytes = 0;
    // Decides on a Unix socket; on TCP every caller is served.
    AccessPolicy policy = {.own = ::geteuid()};
    // Makes what a guest calls. Null: no guest comes in.
    std::function<Services(const Caller& guest)> for_guest = nullptr;
    // As in GrpcEndpoint. The others keep their share of this process's descriptors.
    bool only_probes = false;
  };
  // Each port, each guest and all strangers together have their part of this process's descriptors:
  // 1/2 for a group's daemons, 1/16 for each of the others and for callers that have made no call.

  // The most guests with an endpoint; the one that has connected least recently loses it.
  static constexpr size_t kMostGuests = 16;

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
  struct Guest {
    Services services;
    std::unique_ptr<ConnectionTable> connections;
    std::unique_ptr<GrpcEndpoint> endpoint;  // destroyed first
    uint64_t connected = 0;                  // when last; counts connections
  };

  explicit GrpcServer(Options options);
  absl::Status Listen();
  GrpcEndpoint::Options EndpointOptions() const;
  int Listener() const { return tcp_.socket.valid() ? tcp_.socket.get() : unix_.get(); }
  // Gives a new connection to the endpoint of its caller.
  Acceptor::Taken Take(UniqueFd& connection);
  // The endpoint is null where gRPC has not started it; the table, where there is no limit.
  struct Door {
    GrpcEndpoint* endpoint = nullptr;
    ConnectionTable* connections = nullptr;
  };
  static Acceptor::Taken Give(UniqueFd& connection, const Door& door);
  Door DoorFor(const Caller& caller) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Door DoorOfGuest(const Caller& guest) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For callers that may not come in: it tells them so.
  GrpcEndpoint* Refusing(Standing standing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  FileLock lock_;      // next to a Unix socket, as long as it is served
  UnixListener unix_;  // one of these two is set
  TcpListener tcp_;
  ConnectionTable from_tcp_;
  ConnectionTable of_strangers_;
  std::unique_ptr<GrpcEndpoint> own_;
  Mutex mutex_;
  std::map<Caller, Guest> guests_ ABSL_GUARDED_BY(mutex_);
  std::map<Standing, std::unique_ptr<GrpcEndpoint>> refusing_ ABSL_GUARDED_BY(mutex_);
  uint64_t connections_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<Acceptor> acceptor_;  // ends first
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_GRPC_SERVER_H_
