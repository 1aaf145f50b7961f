// The fd socket: trades one-time tokens for descriptors, and holds each lease for
// as long as its connection lives. One thread, one poll loop: no client, however
// slow or mute, makes another one wait. Protocol: proto/README.md.
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

// Destruction ends every lease and removes the socket file.
class FdServer {
 public:
  // Connections that have not shown a token yet: the oldest one goes when there
  // are more, or more than a quarter of the limit of descriptors.
  static constexpr size_t kMaxUnproven = 256;

  // `leases` outlives the server. Errors: those of UnixListener::Open.
  static absl::StatusOr<std::unique_ptr<FdServer>> Start(const std::string& path,
                                                         LeaseTable& leases);
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

 private:
  struct Connection {
    UniqueFd socket;
    std::string token;  // as far as it has come
    std::string lease;  // once redeemed
    Deadline patience;  // for the token
  };

  FdServer(LeaseTable& leases, UnixListener listener, UniqueFd wake);
  void Loop();
  // Waits for events; false when the server stops.
  bool Poll(std::vector<bool>& ready);
  void Accept();
  // False when the connection has ended.
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
  Deadline paused_until_;  // no connection is accepted before
  std::vector<Connection> connections_;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_FD_SERVER_H_
