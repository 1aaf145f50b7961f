#include "tests/fakes/nccl/wire.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

namespace ckptd::fake_nccl {
namespace {

constexpr int kLookMs = 20;  // how often a wait looks whether it shall stop
constexpr char kPrefix[] = "ckptd-fake-nccl-";

// What bind and connect take.
struct SocketName {
  explicit SocketName(const Address& address) {
    if (address.port != 0) {
      sockaddr_in name{};
      name.sin_family = AF_INET;
      name.sin_addr.s_addr = address.ip;
      name.sin_port = address.port;
      Keep(name, sizeof name);
      return;
    }
    const std::string text = Text(address);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    Keep(name, offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  sockaddr_storage storage{};
  socklen_t length = 0;

 private:
  template <typename Name>
  void Keep(const Name& name, std::size_t bytes) {
    std::memcpy(&storage, &name, bytes);
    length = static_cast<socklen_t>(bytes);
  }
};

UniqueFd Socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Offers and their answers are short, and each waits for the other.
UniqueFd WithoutDelay(UniqueFd fd) {
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // refused where it has no use
  return fd;
}

// 0: it has none.
std::uint32_t IpOf(const std::string& interface) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return 0;
  std::uint32_t found = 0;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if (interface != one->ifa_name) continue;
    sockaddr_in name{};
    std::memcpy(&name, one->ifa_addr, sizeof name);
    found = name.sin_addr.s_addr;
  }
  ::freeifaddrs(all);
  return found;
}

// Bound to that interface, at a port that the system chooses.
UniqueFd BindTcp(const std::string& interface, Address& address) {
  address.ip = IpOf(interface);
  UniqueFd fd = Socket(AF_INET);
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = address.ip;
  socklen_t length = sizeof name;
  if (address.ip == 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &length) != 0) {
    return UniqueFd();
  }
  address.port = name.sin_port;
  return fd;
}

UniqueFd BindAbstract(const Address& address) {
  const SocketName name(address);
  UniqueFd fd = Socket(AF_UNIX);
  return ::bind(fd.get(), name.get(), name.length) == 0 ? std::move(fd) : UniqueFd();
}

// Whether the descriptor is ready before `stop`.
bool Await(int fd, short what, const Stop& stop) {
  pollfd ready{fd, what, 0};
  while (!stop) {
    const int count = ::poll(&ready, 1, kLookMs);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
  }
  return false;
}

// Moves all bytes by `step`, which is recv or send on a non-blocking socket.
template <typename Byte, typename Step>
bool MoveAll(int fd, Byte* at, std::size_t bytes, short what, const Stop& stop, Step step) {
  while (bytes > 0) {
    if (!Await(fd, what, stop)) return false;
    const ssize_t n = step(at, bytes);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

void UniqueFd::Reset() {
  if (valid()) ::close(Release());
}

std::string Text(const Address& address) {
  const std::string text(address.name, ::strnlen(address.name, sizeof address.name));
  return text.rfind(kPrefix, 0) == 0 ? text : "";
}

UniqueFd Listen(const std::string& interface, Address& address) {
  std::uint64_t random[2] = {};
  if (::getrandom(random, sizeof random, 0) != sizeof random) return UniqueFd();
  const std::string text = fmt::format("{}{:016x}{:016x}", kPrefix, random[0], random[1]);
  std::memcpy(address.name, text.data(), text.size());
  UniqueFd listener = interface.empty() ? BindAbstract(address) : BindTcp(interface, address);
  return ::listen(listener.get(), SOMAXCONN) == 0 ? std::move(listener) : UniqueFd();
}

UniqueFd Connect(const Address& address, Clock::time_point until, const Stop& stop) {
  if (Text(address).empty()) return UniqueFd();
  const SocketName name(address);
  while (!stop) {
    UniqueFd fd = Socket(address.port == 0 ? AF_UNIX : AF_INET);
    int error = ::connect(fd.get(), name.get(), name.length) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t length = sizeof error;
      if (!Await(fd.get(), POLLOUT, stop)) break;
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    }
    if (error == 0) return WithoutDelay(std::move(fd));
    if (error != ECONNREFUSED && error != EAGAIN) break;
    if (Clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
  }
  return UniqueFd();
}

UniqueFd Accept(int listener, const Stop& stop) {
  while (Await(listener, POLLIN, stop)) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return WithoutDelay(std::move(fd));
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) break;
  }
  return UniqueFd();
}

bool ReadAll(int fd, void* data, std::size_t bytes, const Stop& stop) {
  return MoveAll(fd, static_cast<char*>(data), bytes, POLLIN, stop,
                 [fd](char* at, std::size_t n) { return ::recv(fd, at, n, 0); });
}

bool WriteAll(int fd, const void* data, std::size_t bytes, const Stop& stop) {
  return MoveAll(fd, static_cast<const char*>(data), bytes, POLLOUT, stop,
                 [fd](const char* at, std::size_t n) { return ::send(fd, at, n, MSG_NOSIGNAL); });
}

}  // namespace ckptd::fake_nccl
