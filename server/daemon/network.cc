#include "server/daemon/network.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <memory>

#include <fmt/format.h>

#include "common/base/posix.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Unresolved(const HostPort& target, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("finding this host's address towards {}: {}; give it with "
                               "--advertise",
                               target.host, why));
}

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& text) {
  HostPort result;
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    result.host = text.substr(0, colon);
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, result.port);
    if (error == std::errc() && stop == end && !result.host.empty()) return result;
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("reading the address \"{}\": write host:port", text));
}

absl::StatusOr<std::string> ListenAddress(const std::string& text) {
  if (text == "0") return std::string();
  const bool is_port = text.find(':') == std::string::npos;
  const std::string address = is_port ? "[::]:" + text : text;
  const absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (parsed.ok() && parsed->port != 0) return address;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                   fmt::format("reading the port \"{}\": write a port from 1 to 65535, or host:port",
                               text));
}

absl::StatusOr<std::string> OwnAddressTowards(const HostPort& target) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* raw = nullptr;
  // The resolver does not accept the brackets around an IPv6 address.
  const bool bracketed = target.host.size() > 2 && target.host.front() == '[' &&
                         target.host.back() == ']';
  const std::string host =
      bracketed ? target.host.substr(1, target.host.size() - 2) : target.host;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(target.port).c_str(), &hints, &raw);
  if (error != 0) return Unresolved(target, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> found(raw, &::freeaddrinfo);
  const UniqueFd socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid() || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    return Unresolved(target, "no route");
  }
  sockaddr_storage own = {};
  socklen_t length = sizeof(own);
  char numeric[NI_MAXHOST] = {};
  auto* const address = reinterpret_cast<sockaddr*>(&own);
  if (::getsockname(socket.get(), address, &length) != 0 ||
      ::getnameinfo(address, length, numeric, sizeof(numeric), nullptr, 0, NI_NUMERICHOST) != 0) {
    return Unresolved(target, "no local address");
  }
  return own.ss_family == AF_INET6 ? fmt::format("[{}]", numeric) : std::string(numeric);
}

absl::StatusOr<HeldPort> HoldFreePort() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Servers set this as well. Then the port can be bound by name, but is not given to programs
  // that ask for any port.
  const int reuse = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!socket.valid() ||
      ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)) != 0 ||
      ::bind(socket.get(), generic, sizeof(address)) != 0 ||
      ::getsockname(socket.get(), generic, &length) != 0) {
    return ErrnoStatus(errno, "finding a free port");
  }
  return HeldPort{std::move(socket), ntohs(address.sin_port)};
}

std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace ckptd
