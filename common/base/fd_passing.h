// Unix stream sockets that carry file descriptors (SCM_RIGHTS), every wait with
// a deadline. Functions are thread-safe in themselves; one socket is used by one
// thread at a time per direction. They work on blocking and non-blocking sockets
// alike and never raise SIGPIPE.
//
// Errors: DeadlineExceeded DEADLINE; Unavailable DAEMON_UNREACHABLE when nobody
// listens or the other side closed; ResourceExhausted NO_MEMORY when descriptors
// run out; InvalidArgument INVALID_REQUEST for what the caller or the other side
// must not do. Messages name the act, never the bytes.
#ifndef CKPTD_COMMON_BASE_FD_PASSING_H_
#define CKPTD_COMMON_BASE_FD_PASSING_H_

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
#include "common/base/posix.h"

namespace ckptd {

using Deadline = std::chrono::steady_clock::time_point;

// Descriptors in one message at most (the kernel's own limit is 253).
inline constexpr size_t kMaxFdsPerMessage = 128;

// Sends all of `bytes`, and `fds` (not closed; at most kMaxFdsPerMessage) with
// the first of them. Descriptors need at least one byte to travel with.
absl::Status SendWithFds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                         Deadline deadline);

struct Received {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> fds;  // close-on-exec
};

// What one receive gives: 1 to `max_bytes` bytes and up to `max_fds` descriptors
// (at most kMaxFdsPerMessage). No bytes: the other side closed. More descriptors
// than allowed is an error, and all that came are closed.
absl::StatusOr<Received> RecvWithFds(int socket, size_t max_bytes, size_t max_fds,
                                     Deadline deadline);

// Exactly `bytes` bytes and the descriptors that came with them, up to
// `max_fds`; the other side closing early is Unavailable.
absl::StatusOr<Received> RecvExactly(int socket, size_t bytes, size_t max_fds, Deadline deadline);

// Connects to the socket at `path`. The result is non-blocking, close-on-exec.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, Deadline deadline);

// Removes the socket file at `path` if nobody listens there any more. A live one, or a
// file that is no socket, is FailedPrecondition (CONFIG_INVALID). For who holds a lock
// that keeps others from putting a live one there meanwhile.
absl::Status RemoveStaleSocket(const std::string& path);

// Which file lies at a path; equal to itself alone as long as somebody has it open.
struct FileAt {
  static std::optional<FileAt> Of(const std::string& path);  // nothing: none is there
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileAt&) const = default;
};

// A socket that listens, and owns its file: removes it at its end, but not what somebody else
// has put there meanwhile (where a folder was removed and made again).
class UnixListener {
 public:
  // Listens at `path` with permission bits `mode` from the first moment on. A socket file
  // nobody listens on any more is replaced; a live one, or a file that is no socket, is
  // FailedPrecondition. Non-blocking, close-on-exec. Meanwhile `path`.lock is held; errors of
  // FileLock, too.
  static absl::StatusOr<UnixListener> Open(const std::string& path, mode_t mode);
  // The same for who holds `path`.lock.
  static absl::StatusOr<UnixListener> OpenLocked(const std::string& path, mode_t mode);
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

// Who is on the other side, as the kernel recorded it when it connected.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};
absl::StatusOr<PeerCredentials> CredentialsOf(int socket);

// Waits until `fd` has one of the poll(2) events `events` (or an error or
// hang-up, which the next call on it reports). `doing` starts the message.
absl::Status WaitForFd(int fd, short events, Deadline deadline, const std::string& doing);

// How many connections of strangers a server may keep open: `most`, but a quarter
// of this process's descriptors at the most, so that the rest stays for its work.
size_t MostStrangers(size_t most);

}  // namespace ckptd

#endif  // CKPTD_COMMON_BASE_FD_PASSING_H_
