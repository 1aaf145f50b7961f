// The process that holds descriptors while daemons are away: sockets around KeptEntries. One
// thread; no daemon makes another one wait for longer than a send takes.
#ifndef CKPTD_SERVER_KEEPER_KEEPER_H_
#define CKPTD_SERVER_KEEPER_KEEPER_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/fd_passing.h"
#include "server/keeper/keeper_wire.h"
#include "server/keeper/kept_entries.h"

namespace ckptd {

class Keeper {
 public:
  // Listens at `path`, mode 0600. Errors: those of UnixListener::Open.
  static absl::StatusOr<std::unique_ptr<Keeper>> Open(const std::string& path);

  // Serves until it is told to end, `stop` is readable, or nobody was connected for `linger` (0:
  // never). Calls `alone` each time that the last connection has ended. Returns why it ends, for
  // people.
  std::string Run(int stop, std::chrono::milliseconds linger,
                  const std::function<void()>& alone = [] {});

 private:
  static constexpr size_t kMaxConnections = 4096;
  struct Connection {
    UniqueFd socket;
    std::string owner;  // empty: no hello yet
  };

  explicit Keeper(UnixListener listener) : listener_(std::move(listener)) {}
  void Accept();
  // Answers the next packet. False if the connection has ended.
  bool Serve(Connection& connection);
  absl::Status Handle(Connection& connection, Packet<v1::KeeperRequest> packet);
  absl::Status Hello(Connection& connection, const v1::KeeperHello& hello);
  absl::Status SendEntries(const Connection& connection) const;
  void Close(Connection& connection);

  const UnixListener listener_;
  KeptEntries entries_;
  std::vector<std::unique_ptr<Connection>> connections_;
  bool ended_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_KEEPER_KEEPER_H_
