// The fd socket: exchanges one-time tokens for descriptors, and takes descriptors of files that
// clients pass. A lease, and what was passed, lasts as long as its connection. One thread with one
// poll loop: no slow or silent client makes another one wait. The protocol is in proto/README.md.
//
// The kernel limits the descriptors of one user that are in messages which nobody has received, for
// all of the user's processes together (ETOOMANYREFS). So each client has one such message at a
// time, and gets the next one once it has received it. No event tells when that is.
#ifndef CKPTD_SERVER_RPC_FD_SERVER_H_
#define CKPTD_SERVER_RPC_FD_SERVER_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/fd_passing.h"
#include "common/base/posix.h"
#include "common/source/access.h"
#include "server/catalog/lease_table.h"
#include "server/protocol/access_policy.h"
#include "server/rpc/file_passing.h"

namespace ckptd {

// The daemon owns it. The destructor ends every lease and removes the socket file.
class FdServer {
 public:
  // Limit of connections that have not sent a token yet. Beyond it, or beyond a quarter of the
  // descriptor limit, the oldest one is closed.
  static constexpr size_t kMaxUnproven = 256;

  // Limit of passed files, of all clients together; or a quarter of the descriptor limit. Of these
  // each guest's user has a quarter.
  static constexpr size_t kMaxPassed = 65'536;

  struct Options {
    AccessPolicy policy = {.own = ::geteuid()};
    // Its `passed` gets them. Not null.
    std::shared_ptr<SourceRules> rules = std::make_shared<SourceRules>();
  };
  // A lease that `leases` has already, and its connection.
  struct Adopted {
    UniqueFd socket;
    std::string lease;
  };
  // `leases` must outlive the server. Errors: those of UnixListener::Open.
  static absl::StatusOr<std::unique_ptr<FdServer>> Start(const std::string& path,
                                                         LeaseTable& leases, Options options,
                                                         std::vector<Adopted> adopted = {});
  static absl::StatusOr<std::unique_ptr<FdServer>> Start(const std::string& path,
                                                         LeaseTable& leases) {
    return Start(path, leases, Options());
  }
  ~FdServer();
  FdServer(const FdServer&) = delete;
  FdServer& operator=(const FdServer&) = delete;

 private:
  // Whose messages count together: a process, or all of a guest's user. One that is in another PID
  // namespace, and so has no number here, is told from others by its connection.
  struct Client {
    uid_t uid = 0;
    int64_t process = 0;  // 0: any of that user; negative: not known
    bool operator==(const Client&) const = default;
  };
  // An answer that is being sent.
  struct Handover {
    std::vector<UniqueFd> fds;
    size_t sent = 0;
  };
  struct Connection {
    UniqueFd socket;
    Client client;
    std::optional<Caller> guest;  // unset: a client whom the daemon trusts
    absl::Status refusal = {};    // the answer to a token, where this client may not come in
    std::string token;  // the part that has arrived
    bool shown = false;                // all of the token is here; it is not redeemed yet
    std::string lease;                 // set once the token is redeemed
    std::optional<Handover> handover;  // what has not left yet
    size_t unreceived = 0;             // descriptors of the last message, as far as is known
    bool left = false;                 // it is open because of these alone
    size_t files = 0;                           // that are announced or were passed
    std::optional<FilePassing> passing;         // set once files are announced
    std::shared_ptr<const void> passed = {};  // set once all of them have come
    Deadline patience;  // deadline for the token, the next files, and for what the client receives

    bool proven() const { return !lease.empty() || passed != nullptr; }
    bool waits() const { return shown || handover.has_value(); }
  };

  FdServer(LeaseTable& leases, UnixListener listener, UniqueFd wake, Options options,
           std::vector<Adopted> adopted);
  void Loop();
  // Waits for events. False when the server stops.
  bool Poll(std::vector<bool>& ready);
  void Accept();
  void Admit(UniqueFd socket);
  // False if the connection has ended.
  bool Serve(Connection& connection);
  bool ReadToken(Connection& connection);
  // Goes on with an answer as far as its client receives it. False if the connection has ended.
  bool Advance(Connection& connection);
  bool Redeem(Connection& connection);
  absl::Status SendNext(Connection& connection);
  bool MaySendTo(const Client& client);
  bool GiveUp(Connection& connection);
  absl::Status NotReceived(const Client& client);
  // Ends its lease; it stays open while its client has not received what was sent.
  bool Leave(Connection& connection);
  absl::Status BeginPassing(Connection& connection);
  bool ReadFiles(Connection& connection);
  absl::Status KeepFiles(Connection& connection);
  void Close(Connection& connection);
  void DropImpatient();
  bool CloseOldestUnproven();  // false: there is none

  LeaseTable& leases_;
  const UnixListener listener_;
  const UniqueFd wake_;  // eventfd: stop
  const Options options_;
  const size_t max_unproven_;
  const size_t max_passed_;
  const size_t per_message_;     // descriptors
  const size_t max_unreceived_;  // descriptors in messages that were sent, of all clients
  int64_t unknown_ = 0;          // clients without a process number so far
  Deadline paused_until_;  // no connection is accepted before this time
  std::vector<Connection> connections_;
  std::thread thread_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_FD_SERVER_H_
