// The listening sockets of gRPC servers. gRPC's own listener stops for ever at the first
// connection for which the process has no descriptor, and nobody is told: it is given
// connections instead.
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
  int port = 0;     // that was bound
};

// Listens at "host:port" or "[host]:port"; port 0: any. "[::]" is every address of both
// kinds, where this machine has both. Errors: FailedPrecondition CONFIG_INVALID where the
// address cannot be bound.
absl::StatusOr<TcpListener> ListenTcp(const std::string& address);

// Takes connections on a thread of its own. Where they have used up three quarters of this
// process's descriptors, further ones are closed at once: the rest stays for its work.
class Acceptor {
 public:
  // Owns the connection: non-blocking, close-on-exec.
  using Take = std::function<void(UniqueFd connection)>;

  // `listener` is non-blocking, stays the caller's, and outlives the acceptor. `address` is for
  // people. Errors: ResourceExhausted without a thread or a descriptor.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(int listener, std::string address,
                                                         Take take);
  // No connection is taken afterwards.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  Acceptor(int listener, std::string address, Take take, UniqueFd wake);
  void Loop();
  // One round: how long to leave the listener alone.
  std::chrono::milliseconds AcceptSome();
  bool MayKeep(const UniqueFd& connection);
  void Warn(const std::string& why);

  const int listener_;
  const std::string address_;
  const Take take_;
  const UniqueFd wake_;  // eventfd: stop
  std::chrono::steady_clock::time_point quiet_until_;  // no warning before
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_ACCEPTOR_H_
