#include "server/comm/host/peer_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr mode_t kSocketMode = 0600;
// How long to ignore the backlog if this process is out of descriptors. Without a pause poll
// would report the backlog again at once.
constexpr int kPauseMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<PeerSocket>> PeerSocket::Start(PeerSocketOptions options,
                                                              SegmentLookup lookup) {
  CKPTD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Open(options.path, kSocketMode));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "making an eventfd");
  options.max_connections = MaxUnprovenConnections(options.max_connections);
  std::unique_ptr<PeerSocket> server(new PeerSocket(std::move(options), std::move(lookup),
                                                    std::move(listener), std::move(wake)));
  try {
    server->acceptor_ = std::thread([raw = server.get()] { raw->AcceptLoop(); });
  } catch (const std::system_error& error) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     std::string("starting the thread of the peer socket: ") + error.what());
  }
  return server;
}

PeerSocket::PeerSocket(PeerSocketOptions options, SegmentLookup lookup,
                       UnixListener listener, UniqueFd wake)
    : options_(std::move(options)),
      lookup_(std::move(lookup)),
      listener_(std::move(listener)),
      wake_(std::move(wake)) {}

PeerSocket::~PeerSocket() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  Wake();
  if (acceptor_.joinable()) acceptor_.join();
  std::list<Connection> rest;
  {
    MutexLock lock(mutex_);
    rest.swap(connections_);
    for (const Connection& connection : rest) ::shutdown(connection.socket.get(), SHUT_RDWR);
  }
  for (Connection& connection : rest) connection.thread.join();
}

void PeerSocket::SetSecret(std::string secret) {
  MutexLock lock(mutex_);
  secret_ = std::move(secret);
}

void PeerSocket::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

bool PeerSocket::Full() {
  MutexLock lock(mutex_);
  return connections_.size() >= options_.max_connections;
}

bool PeerSocket::Stopping() {
  MutexLock lock(mutex_);
  return stop_;
}

void PeerSocket::AcceptLoop() {
  bool pause = false;
  while (!Stopping()) {
    pollfd entries[2] = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                         {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    const bool listen = !pause && !Full();
    // No deadline: the end of a connection, or Stop, wakes this thread.
    ::poll(entries, listen ? 2 : 1, pause ? kPauseMs : -1);
    pause = false;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof(count));
    Reap();
    if (!listen || entries[1].revents == 0) continue;
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.valid()) {
      pause = !Begin(std::move(socket));
    } else {
      pause = errno != EAGAIN && errno != EINTR && errno != ECONNABORTED;
    }
  }
}

// Serves a connection in a thread of its own. False if no thread could be started.
bool PeerSocket::Begin(UniqueFd socket) {
  MutexLock lock(mutex_);
  Connection& connection = connections_.emplace_back();
  connection.socket = std::move(socket);
  try {
    connection.thread = std::thread([this, &connection] { Serve(connection); });
  } catch (const std::system_error&) {
    connections_.pop_back();
    return false;
  }
  return true;
}

void PeerSocket::Serve(Connection& connection) {
  std::string secret;
  {
    MutexLock lock(mutex_);
    secret = secret_;
  }
  const Deadline deadline = std::chrono::steady_clock::now() + options_.patience;
  // Errors can be ignored: a refusal was sent, and the peer knows of a broken connection.
  AnswerPeer(connection.socket.get(), secret, lookup_, deadline).IgnoreError();
  ::shutdown(connection.socket.get(), SHUT_RDWR);
  {
    MutexLock lock(mutex_);
    connection.done = true;
  }
  Wake();
}

void PeerSocket::Reap() {
  std::list<Connection> ended;
  {
    MutexLock lock(mutex_);
    for (auto it = connections_.begin(); it != connections_.end();) {
      const auto next = std::next(it);
      if (it->done) ended.splice(ended.end(), connections_, it);
      it = next;
    }
  }
  for (Connection& connection : ended) connection.thread.join();
}

}  // namespace ckptd
