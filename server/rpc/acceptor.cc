#include "server/rpc/acceptor.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/at_once.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

using std::chrono::milliseconds;

constexpr int kBacklog = 4096;  // so that many ranks may connect at once; the kernel caps it
constexpr int kRound = 64;      // connections between two checks whether to stop
// If the process is out of descriptors, poll would report the backlog again at once.
constexpr milliseconds kPause{100};
constexpr milliseconds kOfferAgain{20};
constexpr milliseconds kTendAgain{100};
// How long a caller may say nothing.
constexpr std::chrono::seconds kSilence{30};
constexpr milliseconds kLookAtSilent{1000};
constexpr std::chrono::seconds kBetweenWarnings{10};

absl::Status CannotBind(const std::string& address, const std::string& why) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("listening on {}: {}choose another --rendezvous, --advertise, "
                               "--peer-port, --health-port or --metrics",
                               address, why));
}

absl::StatusOr<std::unique_ptr<addrinfo, void (*)(addrinfo*)>> Resolve(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return CannotBind(address, "it is not host:port; ");
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* raw = nullptr;
  const int error = ::getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &raw);
  if (error != 0) return CannotBind(address, std::string(::gai_strerror(error)) + "; ");
  return std::unique_ptr<addrinfo, void (*)(addrinfo*)>(raw, ::freeaddrinfo);
}

// Sockets from accept() inherit these options.
bool SetOptions(int socket, int family) {
  const int on = 1;
  const int off = 0;
  return ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
         ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0 &&
         (family != AF_INET6 ||
          ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0);
}

// Invalid on an error, which errno has.
UniqueFd Listening(int family, const sockaddr* address, socklen_t bytes) {
  UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() || !SetOptions(socket.get(), family) ||
      ::bind(socket.get(), address, bytes) != 0 || ::listen(socket.get(), kBacklog) != 0) {
    return {};
  }
  return socket;
}

int PortOf(int socket) {
  sockaddr_storage bound = {};
  socklen_t bytes = sizeof(bound);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &bytes) != 0) return 0;
  const in_port_t port = bound.ss_family == AF_INET6
                             ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                             : reinterpret_cast<const sockaddr_in&>(bound).sin_port;
  return ntohs(port);
}

}  // namespace

absl::StatusOr<TcpListener> ListenTcp(const std::string& address) {
  const auto found = Resolve(address);
  CKPTD_RETURN_IF_ERROR(found.status());
  int error = 0;
  for (const addrinfo* at = found->get(); at != nullptr; at = at->ai_next) {
    UniqueFd socket = Listening(at->ai_family, at->ai_addr, at->ai_addrlen);
    error = errno;
    if (socket.valid()) {
      const int port = PortOf(socket.get());
      return TcpListener{std::move(socket), port};
    }
  }
  // A machine without IPv6.
  if (error == EAFNOSUPPORT && address.rfind("[::]:", 0) == 0) {
    return ListenTcp("0.0.0.0:" + address.substr(5));
  }
  return CannotBind(address, error == EADDRINUSE ? "another daemon has it; stop that one, or "
                                                 : std::string(std::strerror(error)) + "; ");
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Start(int listener, Options options) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "creating an eventfd");
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(listener, std::move(options), std::move(wake)));
  CKPTD_ASSIGN_OR_RETURN(acceptor->thread_,
                         StartThread("taking connections", [raw = acceptor.get()] { raw->Loop(); }));
  return acceptor;
}

Acceptor::Acceptor(int listener, Options options, UniqueFd wake)
    : listener_(listener), options_(std::move(options)), wake_(std::move(wake)) {}

Acceptor::~Acceptor() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) < 0) {
    Log(LogLevel::kWarn, "closing {}: {}", options_.address, std::strerror(errno));
  }
  thread_.join();
}

void Acceptor::Loop() {
  milliseconds pause{0};
  bool tended = false;
  while (Wait(pause, tended)) {
    pause = AcceptSome();
    // A caller that has spoken meanwhile is not taken for a silent one.
    waiting_.remove_if([this](Waiting& one) { return Offer(one); });
    CloseSurplus();
    tended = options_.tend();
  }
}

bool Acceptor::Wait(milliseconds pause, bool tended) {
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0},
                                {pause.count() > 0 ? -1 : listener_, POLLIN, 0}};
  milliseconds longest = waiting_.empty() ? milliseconds(-1) : kLookAtSilent;
  const auto at_most = [&longest](milliseconds time) {
    if (longest.count() < 0 || time < longest) longest = time;
  };
  for (const Waiting& one : waiting_) {
    if (!one.spoke) polled.push_back({one.connection.get(), POLLIN, 0});
    if (one.spoke) at_most(kOfferAgain);
  }
  if (tended) at_most(kTendAgain);
  if (pause.count() > 0) at_most(pause);
  ::poll(polled.data(), polled.size(), static_cast<int>(longest.count()));
  return polled[0].revents == 0;
}

milliseconds Acceptor::AcceptSome() {
  for (int i = 0; i < kRound; ++i) {
    UniqueFd connection(::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!connection.valid()) {
      if (errno == EAGAIN) return milliseconds(0);
      if (errno == ECONNABORTED || errno == EINTR) continue;
      Warn(fmt::format("no connection can be taken: {}", std::strerror(errno)));
      return kPause;
    }
    if (MayKeep(connection)) {
      waiting_.push_back({std::move(connection), std::chrono::steady_clock::now()});
    }
  }
  return milliseconds(0);
}

bool Acceptor::Offer(Waiting& waiting) {
  if (!waiting.spoke) {
    char byte = 0;
    const ssize_t n = ::recv(waiting.connection.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) return true;
    waiting.spoke = true;
  }
  switch (options_.take(waiting.connection)) {
    case Taken::kYes: break;
    case Taken::kLater: return false;
    case Taken::kNo: Warn("a connection is closed, because its callers have too many"); break;
  }
  return true;
}

void Acceptor::CloseSurplus() {
  const auto now = std::chrono::steady_clock::now();
  while (!waiting_.empty() && now - waiting_.front().since > kSilence) waiting_.pop_front();
  if (waiting_.size() <= options_.most_waiting) return;
  Warn(fmt::format("connections whose callers say nothing are closed, because {} wait",
                   waiting_.size()));
  // One pass, the oldest first; those that have spoken go last.
  for (const bool spoke : {false, true}) {
    for (auto at = waiting_.begin();
         at != waiting_.end() && waiting_.size() > options_.most_waiting;) {
      at = at->spoke == spoke ? waiting_.erase(at) : std::next(at);
    }
  }
}

// A new descriptor has the lowest free number, so its number tells how many are open.
bool Acceptor::MayKeep(const UniqueFd& connection) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return true;
  const double most = static_cast<double>(limit.rlim_cur) * options_.may_open;
  if (static_cast<double>(connection.get()) < most) return true;
  Warn(fmt::format("connections are closed, because {} of {} "
                   "descriptors are open", connection.get(),
                   limit.rlim_cur));
  return false;
}

void Acceptor::Warn(const std::string& why) {
  const auto now = std::chrono::steady_clock::now();
  if (now < quiet_until_) return;
  quiet_until_ = now + kBetweenWarnings;
  Log(LogLevel::kWarn, "{}: {}; raise the limit of open files (ulimit -n) if that many are needed",
      options_.address, why);
}

}  // namespace ckptd
