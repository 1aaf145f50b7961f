// Unix sockets that carry file descriptors (SCM_RIGHTS): streams, or packets (SOCK_SEQPACKET), of
// which each send and each receive is one. Every wait has a deadline. The functions are
// thread-safe, but a socket may be used by one thread at a time per direction. They work on
// blocking and non-blocking sockets and never raise SIGPIPE.
//
// Errors: DeadlineExceeded DEADLINE; Unavailable DAEMON_UNREACHABLE if nobody listens or the
// other side has closed; ResourceExhausted NO_MEMORY without descriptors; InvalidArgument
// INVALID_REQUEST for what the caller or the other side must not do. Messages never contain the
// bytes.
#ifndef CKPTD_COMMON_BASE_FD_PASSING_H_
#define CKPTD_COMMON_BASE_FD_PASSING_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/caller.h"
#include "common/base/posix.h"

namespace ckptd {

using Deadline = std::chrono::steady_clock::time_point;

// The most descriptors in one message (the kernel's limit is 253).
inline constexpr size_t kMaxFdsPerMessage = 128;

// Sends all of `bytes`, and `fds` with the first of them. At most kMaxFdsPerMessage; they are not
// closed. Descriptors need at least one byte to be sent with.
absl::Status SendWithFds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                         Deadline deadline);

struct Received {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;  // close-on-exec
};

// The result of one receive: 1 to `max_bytes` bytes and up to `max_fds` descriptors (at most
// kMaxFdsPerMessage). No bytes: the other side has closed. If more descriptors come, all are
// closed and this is an error.
absl::StatusOr<Received> RecvWithFds(int socket, size_t max_bytes, size_t max_fds,
                                     Deadline deadline);

// Exactly `bytes` bytes and up to `max_fds` descriptors that came with them. Unavailable if the
// other side closes early.
absl::StatusOr<Received> RecvExactly(int socket, size_t bytes, size_t max_fds, Deadline deadline);

// Connects to the socket at `path`. The result is non-blocking and close-on-exec.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, Deadline deadline,
                                     int type = SOCK_STREAM);

// Removes the socket file at `path` if nobody listens on it. FailedPrecondition CONFIG_INVALID
// for a live socket, or a file that is no socket. The caller must hold a lock that keeps others
// from creating a live socket meanwhile.
absl::Status RemoveStaleSocket(const std::string& path);

// Identifies the file at a path. While the file is open, no other file is equal.
struct FileAt {
  static std::optional<FileAt> Of(const std::string& path);  // nothing: there is no file
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileAt&) const = default;
};

// A listening socket that owns its file. It removes the file at its end, but not a file that
// somebody else has created there meanwhile (if the folder was removed and made again).
class UnixListener {
 public:
  // Listens at `path`. The file has the permission bits `mode` from the beginning, and then
  // belongs to `group`, where one is given. A stale socket file is replaced; a live one, or a file
  // that is no socket, is FailedPrecondition. Non-blocking, close-on-exec. `path`.lock is held
  // meanwhile. Errors: also those of FileLock.
  static absl::StatusOr<UnixListener> Open(const std::string& path, mode_t mode,
                                           std::optional<gid_t> group = std::nullopt,
                                           int type = SOCK_STREAM);
  // The same, if the caller holds `path`.lock.
  static absl::StatusOr<UnixListener> OpenLocked(const std::string& path, mode_t mode,
                                                 std::optional<gid_t> group = std::nullopt,
                                                 int type = SOCK_STREAM);
  UnixListener() = default;
  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&& other) noexcept;
  ~UnixListener() { Close(); }

  int get() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  void Close();

 private:
  UnixListener(UniqueFd fd, std::string path, std::optional<FileAt> file)
      : fd_(std::move(fd)), path_(std::move(path)), file_(file) {}

  UniqueFd fd_;
  std::string path_;
  std::optional<FileAt> file_;
};

// The process on the other side, as the kernel recorded it when it connected.
struct PeerCredentials {
  pid_t pid = 0;  // 0: it is in another PID namespace
  uid_t uid = 0;
  gid_t gid = 0;
};
absl::StatusOr<PeerCredentials> CredentialsOf(int socket);
// The same process's user and groups. Needs Linux 4.13.
absl::StatusOr<Caller> CallerOf(int socket);

// Waits until `fd` has one of the poll(2) events `events`, or an error or hang-up, which the next
// call on it reports. `doing` is the beginning of the message.
absl::Status WaitForFd(int fd, short events, Deadline deadline, const std::string& doing);

// How many unauthenticated connections a server may keep open: `most`, but at most a quarter of
// this process's descriptors, so that it can go on working.
size_t MaxUnprovenConnections(size_t most);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_FD_PASSING_H_
