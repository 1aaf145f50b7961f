// The listening sockets of gRPC servers. gRPC's own listener stops forever, without an error, at
// the first connection for which the process has no descriptor. So this accepts connections and
// gives them to gRPC.
#ifndef CKPTD_SERVER_RPC_ACCEPTOR_H_
#define CKPTD_SERVER_RPC_ACCEPTOR_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/posix.h"

namespace ckptd {

struct TcpListener {
  UniqueFd socket;  // non-blocking, close-on-exec
  int port = 0;     // the port that was bound
};

// Listens at "host:port" or "[host]:port"; port 0: any. "[::]" means every IPv4 and IPv6 address
// that this machine has. Errors: FailedPrecondition CONFIG_INVALID if the address cannot be
// bound.
absl::StatusOr<TcpListener> ListenTcp(const std::string& address);

// Accepts connections on a thread of its own. If a share of this process's descriptors is open,
// further ones are closed at once, so that the daemon can go on working. GrpcServer owns it.
class Acceptor {
 public:
  // Gets each connection and owns it: non-blocking, close-on-exec.
  using Take = std::function<void(UniqueFd connection)>;

  // `listener` must be non-blocking and outlive the acceptor; the caller owns it. `address` is
  // for people. `may_open`: that share of the descriptors, from 0 to 1. Errors: ResourceExhausted
  // without a thread or a descriptor.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(int listener, std::string address,
                                                         double may_open, Take take);
  // No connection is accepted afterwards.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  Acceptor(int listener, std::string address, double may_open, Take take, UniqueFd wake);
  void Loop();
  // Accepts some connections. Returns how long to ignore the listener then.
  std::chrono::milliseconds AcceptSome();
  bool MayKeep(const UniqueFd& connection);
  void Warn(const std::string& why);

  const int listener_;
  const std::string address_;
  const double may_open_;
  const Take take_;
  const UniqueFd wake_;                                // eventfd: stop
  std::chrono::steady_clock::time_point quiet_until_;  // no warning before this time
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_ACCEPTOR_H_
