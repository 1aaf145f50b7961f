// Serves this daemon's memory segments to the daemon of the same group and host that fills them.
// peer_protocol.h has the protocol.
#ifndef CKPTD_SERVER_COMM_HOST_PEER_SOCKET_H_
#define CKPTD_SERVER_COMM_HOST_PEER_SOCKET_H_

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "server/comm/host/peer_protocol.h"

namespace ckptd {

struct PeerSocketOptions {
  std::string path;  // of the socket; only our user may enter its directory
  // A connection that is not finished after this time is closed.
  std::chrono::milliseconds patience = std::chrono::seconds(2);
  // Connections served at the same time; others wait in the backlog. This and `patience` limit
  // how long silent connections can delay the leader.
  size_t max_connections = 256;
};

// Runs a thread that accepts, and one thread per connection, so that a silent peer blocks nobody.
// The daemon owns it. Thread-safe. The destructor ends all threads and removes the socket file.
class PeerSocket {
 public:
  // `lookup` is called from several threads at the same time and must outlive the result. Errors:
  // those of UnixListener::Open.
  static absl::StatusOr<std::unique_ptr<PeerSocket>> Start(PeerSocketOptions options,
                                                           SegmentLookup lookup);
  ~PeerSocket();
  PeerSocket(const PeerSocket&) = delete;
  PeerSocket& operator=(const PeerSocket&) = delete;

  // kPeerSecretBytes bytes. Until it is set, and while it is empty, all requests are refused.
  void SetSecret(std::string secret);

 private:
  struct Connection {
    UniqueFd socket;
    std::thread thread;
    bool done = false;
  };

  PeerSocket(PeerSocketOptions options, SegmentLookup lookup, UnixListener listener,
             UniqueFd wake);
  void AcceptLoop();
  bool Begin(UniqueFd socket);
  void Serve(Connection& connection);
  void Reap();
  void Wake() const;
  bool Full();
  bool Stopping();

  const PeerSocketOptions options_;
  const SegmentLookup lookup_;
  const UnixListener listener_;
  const UniqueFd wake_;  // eventfd: a connection ended, or Stop was called

  Mutex mutex_;
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_COMM_HOST_PEER_SOCKET_H_
