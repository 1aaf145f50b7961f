// The connections that one listener has given to gRPC. gRPC 1.51 says of none when it ends, and
// closes none on demand, so this looks at their sockets. It keeps callers that nobody knows yet from
// taking descriptors that others need.
#ifndef CKPTD_SERVER_RPC_CONNECTION_TABLE_H_
#define CKPTD_SERVER_RPC_CONNECTION_TABLE_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <string>
#include <string_view>

#include "common/base/mutex.h"
#include "common/base/posix.h"

namespace ckptd {

// Thread-safe. It owns no connection.
class ConnectionTable {
 public:
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
  struct Limits {
    size_t open = kUnlimited;
    // Connections whose caller has made no call yet. With TLS those are strangers.
    size_t unproven = kUnlimited;
    // TCP: a caller that has sent more is proven, because no TLS handshake is that long.
    uint64_t proving_bytes = kUnlimited;
    // TCP: a caller that has sent more since its last call is cut off, and none is ever proven. This
    // bounds the headers of a call, which gRPC 1.51 does not: it counts them per frame.
    uint64_t bytes_per_call = kUnlimited;
  };
  // For a new connection: there is room; there may be soon; there is none.
  enum class Room { kYes, kLater, kNo };
  // A connection without a call is not closed for another one before this time. Otherwise thousands
  // of ranks that join at once would close each other's.
  static constexpr std::chrono::milliseconds kGrace{250};

  explicit ConnectionTable(Limits limits) : limits_(limits) {}
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // Where a limit is reached, the oldest connection without a call is closed.
  Room MakeRoom();
  // `connection` is open, and may be closed by others at any time from now on.
  void Add(int connection);
  // `peer` has made a call: the other end as gRPC writes it, such as "ipv4:10.0.0.7:40112". Callers
  // on Unix sockets cannot be told apart: there all connections count as without a call.
  void Prove(std::string_view peer);
  // Cuts off callers that send too much. Whether it is to be called again soon.
  bool Tend();

 private:
  struct Connection {
    int fd = -1;  // of another owner; it is this connection as long as it has this inode
    ino_t inode = 0;
    std::string peer;
    std::chrono::steady_clock::time_point since;
    uint64_t bytes = 0;  // that had come with its last call
  };
  // A descriptor of its own; invalid if the connection has ended.
  static UniqueFd Pin(const Connection& connection);
  void ForgetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  Mutex mutex_;
  std::list<Connection> unproven_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  std::list<Connection> proven_ ABSL_GUARDED_BY(mutex_);
};

// The nth part of the descriptors that this process may open, at least 8.
size_t PartOfDescriptors(size_t nth);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_CONNECTION_TABLE_H_
