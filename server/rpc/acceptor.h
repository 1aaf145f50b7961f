// The listening sockets of gRPC servers. gRPC's own listener stops forever, without an error, at
// the first connection for which the process has no descriptor. So this accepts connections and
// gives them to gRPC.
#ifndef CKPTD_SERVER_RPC_ACCEPTOR_H_
#define CKPTD_SERVER_RPC_ACCEPTOR_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <list>
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

// Accepts connections on a thread of its own. A connection is given on once its caller has said
// something, as every caller of gRPC does at once. Those that stay silent cost a descriptor each,
// few at a time. If a share of this process's descriptors is open, further connections are closed
// at once, so that the daemon can go on working. GrpcServer owns it.
class Acceptor {
 public:
  enum class Taken {
    kYes,
    kLater,  // it is offered again soon
    kNo,     // it is closed
  };
  struct Options {
    std::string address;  // for people
    // Share of the descriptors of this process that may be open, from 0 to 1.
    double may_open = 0.75;
    // Connections that may wait here; beyond that the oldest silent one is closed.
    size_t most_waiting = 64;
    // Gets each connection and owns it: non-blocking, close-on-exec.
    std::function<Taken(UniqueFd& connection)> take;
    // Called now and then. True: it is to be called again soon.
    std::function<bool()> tend = [] { return false; };
  };

  // `listener` must be non-blocking and outlive the acceptor; the caller owns it. Errors:
  // ResourceExhausted without a thread or a descriptor.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Start(int listener, Options options);
  // No connection is accepted afterwards.
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

 private:
  struct Waiting {
    UniqueFd connection;
    std::chrono::steady_clock::time_point since;
    bool spoke = false;  // there was no room for it yet
  };

  Acceptor(int listener, Options options, UniqueFd wake);
  void Loop();
  // Waits for events; if `pause` is not zero, so long, and not for new connections. False: stop.
  bool Wait(std::chrono::milliseconds pause, bool tended);
  // Accepts some connections. Returns how long to ignore the listener then.
  std::chrono::milliseconds AcceptSome();
  bool MayKeep(const UniqueFd& connection);
  // Whether it waits no longer: it was given on, or has ended.
  bool Offer(Waiting& waiting);
  void CloseSurplus();
  void Warn(const std::string& why);

  const int listener_;
  const Options options_;
  const UniqueFd wake_;                                // eventfd: stop
  std::list<Waiting> waiting_;                         // the oldest first
  std::chrono::steady_clock::time_point quiet_until_;  // no warning before this time
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_ACCEPTOR_H_
