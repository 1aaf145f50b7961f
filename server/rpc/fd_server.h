// The fd socket: exchanges one-time tokens for descriptors, and keeps each lease as long as its
// connection. One thread with one poll loop: no slow or silent client makes another one wait. The
// protocol is in proto/README.md.
#ifndef CKPTD_SERVER_RPC_FD_SERVER_H_
#define CKPTD_SERVER_RPC_FD_SERVER_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd_passing.h"
#include "common/base/posix.h"
#include "server/catalog/lease_table.h"

namespace ckptd {

// The daemon owns it. The destructor ends every lease and removes the socket file.
class FdServer {
 public:
  // Limit of connections that have not sent a token yet. Beyond it, or beyond a quarter of the
  // descriptor limit, the oldest one is closed.
  static constexpr size_t kMaxUnproven = 256;

  // A lease that `leases` has already, and its connection.
  struct Adopted {
    UniqueFd socket;
    std::string lease;
  };

  // `leases` must outlive the server. Errors: those of UnixListener::Open.
  static absl::StatusOr<std::unique_ptr<FdServer>> Start(const std::string& path,
                                                         LeaseTable& leases,
                                                         std::vector<Adopted> adopted = {});
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

 private:
  struct Connection {
    UniqueFd socket;
    std::string token;  // the part that has arrived
    std::string lease;  // set once the token is redeemed
    Deadline patience;  // deadline for the token
  };

  FdServer(LeaseTable& leases, UnixListener listener, UniqueFd wake, std::vector<Adopted> adopted);
  void Loop();
  // Waits for events. False when the server stops.
  bool Poll(std::vector<bool>& ready);
  void Accept();
  // False if the connection has ended.
  bool Serve(Connection& connection);
  bool ReadToken(Connection& connection);
  bool Answer(Connection& connection);
  void Close(Connection& connection);
  void DropImpatient();
  bool CloseOldestUnproven();  // false: there is none

  LeaseTable& leases_;
  const UnixListener listener_;
  const UniqueFd wake_;  // eventfd: stop
  const size_t max_unproven_;
  Deadline paused_until_;  // no connection is accepted before this time
  std::vector<Connection> connections_;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_FD_SERVER_H_
