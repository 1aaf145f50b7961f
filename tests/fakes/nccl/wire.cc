#include "tests/fakes/nccl/wire.h"

#include <fmt/format.h>
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

sockaddr_un Name(const std::string& text, socklen_t& length) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, text.data(), text.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return name;
}

UniqueFd Socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
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

UniqueFd Listen(Address& address) {
  std::uint64_t random[2] = {};
  if (::getrandom(random, sizeof random, 0) != sizeof random) return UniqueFd();
  const std::string text = fmt::format("{}{:016x}{:016x}", kPrefix, random[0], random[1]);
  std::memcpy(address.name, text.data(), text.size());
  UniqueFd listener = Socket();
  socklen_t length = 0;
  const sockaddr_un name = Name(text, length);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0 ||
      ::listen(listener.get(), SOMAXCONN) != 0) {
    return UniqueFd();
  }
  return listener;
}

UniqueFd Connect(const Address& address, Clock::time_point until, const Stop& stop) {
  const std::string text = Text(address);
  socklen_t length = 0;
  const sockaddr_un name = Name(text, length);
  while (!text.empty() && !stop) {
    UniqueFd fd = Socket();
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), length) == 0) return fd;
    if (errno != ECONNREFUSED && errno != EAGAIN) break;
    if (Clock::now() >= until) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
  }
  return UniqueFd();
}

UniqueFd Accept(int listener, const Stop& stop) {
  while (Await(listener, POLLIN, stop)) {
    UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return fd;
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
