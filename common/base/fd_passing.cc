#include "common/base/fd_passing.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "common/base/file_lock.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "fmt/format.h"

namespace ckptd {
namespace {

constexpr int kBacklog = 4096;  // so that many clients may connect at once; the kernel caps it
constexpr auto kRetryPause = std::chrono::milliseconds(2);
constexpr size_t kControlBytes = CMSG_SPACE(sizeof(int) * kMaxFdsPerMessage);

absl::Status Invalid(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest, message);
}

absl::Status SocketError(int error, const std::string& doing) {
  const std::string message = doing + ": " + std::strerror(error);
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ENOENT:
    case ENOTCONN:
      return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable, message);
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS:
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                       message + "; raise the limit of open files (ulimit -n)");
    case EACCES:
    case EPERM:
      return MakeError(absl::StatusCode::kPermissionDenied, reason::kDaemonUnreachable, message);
    case ENOSPC:
    case EDQUOT:
      return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                       message + "; free room there, or choose another folder");
    default:
      return absl::InternalError(message);
  }
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path) ||
      path.find('\0') != std::string::npos) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("using the Unix socket '{}': its path has {} bytes, 1 to {} are "
                                 "possible; choose a shorter directory",
                                 path.substr(0, 200), path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<UniqueFd> NewSocket(int type) {
  UniqueFd fd(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return SocketError(errno, "making a Unix socket");
  return fd;
}

int ConnectOnce(int socket, const sockaddr_un& address) {
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(socket, generic, sizeof(address)) == 0 ? 0 : errno;
}

// Takes ownership of every descriptor in the message.
void CollectFds(msghdr& message, std::vector<UniqueFd>& fds) {
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

}  // namespace

absl::Status RemoveStaleSocket(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : SocketError(errno, "looking at " + path);
  }
  if (!S_ISSOCK(info.st_mode)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     "listening on " + path +
                         ": a file that is no socket is there; remove it or choose another path",
                     {{"file", path}});
  }
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd probe, NewSocket(SOCK_STREAM));
  if (const int error = ConnectOnce(probe.get(), address); error != ECONNREFUSED) {
    if (error == ENOENT) return absl::OkStatus();
    const auto who = CredentialsOf(probe.get());
    const bool known = who.ok() && who->pid != 0;
    const std::string process = known ? fmt::format(" (process {})", who->pid) : "";
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     fmt::format("listening on {}: another process answers there{}; stop it or "
                                 "choose another path",
                                 path, process),
                     {{"file", path}});
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return SocketError(errno, "removing the stale socket " + path);
  }
  return absl::OkStatus();
}

absl::Status WaitForFd(int fd, short events, Deadline deadline, const std::string& doing) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    const auto timeout = std::clamp<std::chrono::milliseconds::rep>(left.count(), 0, 60'000);
    pollfd entry = {.fd = fd, .events = events, .revents = 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(timeout));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return SocketError(errno, doing);
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                       doing + ": the other side did not answer in time; see whether it runs");
    }
  }
}

absl::Status SendWithFds(int socket, std::span<const std::byte> bytes, std::span<const int> fds,
                         Deadline deadline) {
  if (fds.size() > kMaxFdsPerMessage || (bytes.empty() && !fds.empty())) {
    return Invalid(fmt::format("sending {} descriptors with {} bytes: a message carries at most "
                               "{} descriptors and needs at least 1 byte",
                               fds.size(), bytes.size(), kMaxFdsPerMessage));
  }
  alignas(cmsghdr) std::array<char, kControlBytes> control = {};
  size_t sent = 0;
  while (sent < bytes.size()) {
    iovec part = {.iov_base = const_cast<std::byte*>(bytes.data() + sent),
                  .iov_len = bytes.size() - sent};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (sent == 0 && !fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    const ssize_t n = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (n < 0 && errno == ETOOMANYREFS && std::chrono::steady_clock::now() < deadline) {
      // Too many of our descriptors are in messages. The other side will receive some soon, but
      // there is no event for that.
      std::this_thread::sleep_for(kRetryPause);
    } else if (n < 0 && errno == EAGAIN) {
      CKPTD_RETURN_IF_ERROR(WaitForFd(socket, POLLOUT, deadline, "sending on a Unix socket"));
    } else if (n < 0 && errno != EINTR) {
      return SocketError(errno, "sending on a Unix socket");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Received> RecvWithFds(int socket, size_t max_bytes, size_t max_fds,
                                     Deadline deadline) {
  if (max_bytes == 0 || max_fds > kMaxFdsPerMessage) {
    return Invalid("receiving on a Unix socket: a limit out of range");
  }
  alignas(cmsghdr) std::array<char, kControlBytes> control = {};
  Received received;
  received.bytes.resize(max_bytes);
  for (;;) {
    iovec part = {.iov_base = received.bytes.data(), .iov_len = max_bytes};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    // CMSG_LEN, not CMSG_SPACE, whose padding has room for one more descriptor.
    message.msg_control = max_fds > 0 ? control.data() : nullptr;
    message.msg_controllen = max_fds > 0 ? CMSG_LEN(sizeof(int) * max_fds) : 0;
    const ssize_t n = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n >= 0) {
      CollectFds(message, received.fds);
      received.bytes.resize(static_cast<size_t>(n));
      const bool cut = (message.msg_flags & MSG_CTRUNC) != 0;
      if (cut && received.fds.size() < max_fds) {
        return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                         "receiving on a Unix socket: this process has no room for the descriptors "
                         "that came; raise ulimit -n");
      }
      if (cut || received.fds.size() > max_fds) {
        return Invalid(fmt::format(
            "receiving on a Unix socket: more than the {} descriptors expected came", max_fds));
      }
      return received;
    }
    if (errno == EAGAIN) {
      CKPTD_RETURN_IF_ERROR(WaitForFd(socket, POLLIN, deadline, "receiving on a Unix socket"));
    } else if (errno != EINTR) {
      return SocketError(errno, "receiving on a Unix socket");
    }
  }
}

absl::StatusOr<Received> RecvExactly(int socket, size_t bytes, size_t max_fds,
                                     Deadline deadline) {
  Received all;
  while (all.bytes.size() < bytes) {
    CKPTD_ASSIGN_OR_RETURN(Received part, RecvWithFds(socket, bytes - all.bytes.size(),
                                                      max_fds - all.fds.size(), deadline));
    if (part.bytes.empty()) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable,
                       fmt::format("receiving on a Unix socket: the other side closed it after "
                                   "{} of {} bytes",
                                   all.bytes.size(), bytes));
    }
    all.bytes.insert(all.bytes.end(), part.bytes.begin(), part.bytes.end());
    for (UniqueFd& fd : part.fds) all.fds.push_back(std::move(fd));
  }
  return all;
}

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path, Deadline deadline, int type) {
  CKPTD_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(type));
  const std::string doing = "connecting to the Unix socket " + path;
  for (;;) {
    const int error = ConnectOnce(fd.get(), address);
    if (error == 0 || error == EISCONN) return fd;
    // A full backlog returns EAGAIN at once, without an event to wait for.
    if (error != EAGAIN && error != EINTR) return SocketError(error, doing);
    if (std::chrono::steady_clock::now() >= deadline) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                       doing + ": the other side accepts no connection; see whether it hangs");
    }
    std::this_thread::sleep_for(kRetryPause);
  }
}

std::optional<FileAt> FileAt::Of(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return std::nullopt;
  return FileAt{info.st_dev, info.st_ino};
}

absl::StatusOr<UnixListener> UnixListener::Open(const std::string& path, mode_t mode,
                                                std::optional<gid_t> group, int type) {
  CKPTD_RETURN_IF_ERROR(AddressOf(path).status());
  // The lock keeps others from creating a live socket between the check and the removal of a
  // stale one.
  CKPTD_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(path + ".lock"));
  return OpenLocked(path, mode, group, type);
}

absl::StatusOr<UnixListener> UnixListener::OpenLocked(const std::string& path, mode_t mode,
                                                      std::optional<gid_t> group, int type) {
  CKPTD_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  CKPTD_RETURN_IF_ERROR(RemoveStaleSocket(path));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(type));
  const std::string doing = "listening on the Unix socket " + path;
  // bind() gives the file the socket's mode, minus the umask. So others can never connect, and
  // the process-wide umask is not changed.
  if (::fchmod(fd.get(), mode) != 0) return SocketError(errno, doing);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::bind(fd.get(), generic, sizeof(address)) != 0) return SocketError(errno, doing);
  constexpr auto kSameUser = static_cast<uid_t>(-1);
  const bool given = !group.has_value() || ::lchown(path.c_str(), kSameUser, *group) == 0;
  if (!given || ::chmod(path.c_str(), mode) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    ::unlink(path.c_str());
    return SocketError(error, doing);
  }
  return UnixListener(std::move(fd), path, FileAt::Of(path));
}

UnixListener& UnixListener::operator=(UnixListener&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::move(other.fd_);
    path_ = std::move(other.path_);
    file_ = other.file_;
  }
  return *this;
}

void UnixListener::Close() {
  if (!fd_.valid()) return;
  // While the file is open, no other file can have its inode.
  if (file_.has_value() && FileAt::Of(path_) == file_) ::unlink(path_.c_str());
  fd_.Reset();
}

absl::StatusOr<PeerCredentials> CredentialsOf(int socket) {
  ucred raw = {};
  socklen_t bytes = sizeof(raw);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &raw, &bytes) != 0) {
    return SocketError(errno, "asking who is on the other side of a Unix socket");
  }
  return PeerCredentials{.pid = raw.pid, .uid = raw.uid, .gid = raw.gid};
}

absl::StatusOr<Caller> CallerOf(int socket) {
  CKPTD_ASSIGN_OR_RETURN(const PeerCredentials peer, CredentialsOf(socket));
  Caller caller{peer.uid, peer.gid, std::vector<gid_t>(32)};
  for (;;) {
    auto bytes = static_cast<socklen_t>(caller.groups.size() * sizeof(gid_t));
    const int got = ::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, caller.groups.data(), &bytes);
    const int error = errno;
    caller.groups.resize(bytes / sizeof(gid_t));
    if (got == 0) break;
    // With too little room the kernel says how much there must be.
    if (error != ERANGE) return SocketError(error, "asking for the groups of a Unix socket's peer");
  }
  std::sort(caller.groups.begin(), caller.groups.end());
  return caller;
}

size_t MaxUnprovenConnections(size_t most) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return most;
  return std::clamp<size_t>(limit.rlim_cur / 4, 1, most);
}

}  // namespace ckptd
