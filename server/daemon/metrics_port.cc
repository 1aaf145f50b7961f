#include "server/daemon/metrics_port.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/daemon/network.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;

// Strangers may reach this port. A request is a few lines, which its caller sends at once.
constexpr size_t kMaxRequest = 8192;
constexpr std::chrono::milliseconds kRequestPatience{250};
constexpr std::chrono::seconds kAnswerPatience{2};
constexpr size_t kMaxAnswer = size_t{16} << 20;
constexpr std::string_view kHeadEnd = "\r\n\r\n";
// Share of this process's descriptors beyond which connections are refused.
constexpr double kMayOpen = 0.5;
constexpr size_t kMostSilent = 16;
constexpr mode_t kSocketMode = 0600;

// False at the deadline.
bool Await(int fd, int16_t events, Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  if (left.count() <= 0) return false;
  pollfd polled = {fd, events, 0};
  return ::poll(&polled, 1, static_cast<int>(left.count())) > 0;
}

// Reads until `done`, the end of the stream, or more than `most` bytes. False at the deadline, and
// on an error.
bool ReadUntil(int fd, const std::function<bool(const std::string&)>& done, size_t most,
               Clock::time_point deadline, std::string& text) {
  char buffer[4096];
  while (!done(text) && text.size() <= most) {
    if (!Await(fd, POLLIN, deadline)) return false;
    const ssize_t n = ::recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (n == 0) return true;
    if (n < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
  }
  return true;
}

bool WriteAll(int fd, std::string_view text, Clock::time_point deadline) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return false;
    } else if (!Await(fd, POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

std::string Response(std::string_view status, std::string_view type, std::string_view body,
                     bool with_body = true) {
  return fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n"
                     "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{}",
                     status, type, body.size(), with_body ? body : std::string_view());
}

std::string Refusal(std::string_view status) {
  return Response(status, "text/plain; charset=utf-8", "GET /metrics has this daemon's metrics\n");
}

absl::Status Unreachable(const std::string& socket, const std::string& why) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable,
                   fmt::format("asking {} for its metrics: {}; see that daemon's log", socket, why));
}

absl::StatusOr<UniqueFd> Connect(const std::string& socket) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof(address.sun_path)) return Unreachable(socket, "its path is too long");
  std::memcpy(address.sun_path, socket.data(), socket.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Unreachable(socket, std::strerror(errno));
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::string> MetricsAddress(const std::string& text) {
  if (text == kMetricsSocket) return text;
  const bool port_alone = text != "0" && text.find(':') == std::string::npos;
  const auto address = ListenAddress(port_alone ? "127.0.0.1:" + text : text);
  if (address.ok()) return address;
  return MakeError(address.status().code(), reason::kConfigInvalid,
                   fmt::format("reading \"{}\": write a port from 1 to 65535, host:port, {} or 0", text,
                               kMetricsSocket));
}

absl::StatusOr<std::unique_ptr<MetricsPort>> MetricsPort::Start(const std::string& address,
                                                                const std::string& socket,
                                                                Render render) {
  std::unique_ptr<MetricsPort> port(new MetricsPort(std::move(render)));
  int listener = -1;
  if (address == kMetricsSocket) {
    CKPTD_ASSIGN_OR_RETURN(port->unix_, UnixListener::Open(socket, kSocketMode));
    listener = port->unix_.get();
  } else {
    CKPTD_ASSIGN_OR_RETURN(TcpListener tcp, ListenTcp(address));
    port->tcp_ = std::move(tcp.socket);
    listener = port->tcp_.get();
  }
  const auto take = [raw = port.get()](UniqueFd& connection) {
    raw->Serve(connection.get());
    return Acceptor::Taken::kYes;
  };
  CKPTD_ASSIGN_OR_RETURN(
      port->acceptor_,
      Acceptor::Start(listener, {.address = address == kMetricsSocket ? socket : address,
                                 .may_open = kMayOpen,
                                 .most_waiting = kMostSilent,
                                 .take = take}));
  return port;
}

void MetricsPort::Serve(int connection) const {
  std::string request;
  const auto complete = [](const std::string& text) {
    return text.find(kHeadEnd) != std::string::npos;
  };
  if (!ReadUntil(connection, complete, kMaxRequest, Clock::now() + kRequestPatience, request)) return;
  if (!complete(request) && request.size() <= kMaxRequest) return;
  const std::string answer = complete(request) ? Answer(request)
                                               : Refusal("431 Request Header Fields Too Large");
  if (WriteAll(connection, answer, Clock::now() + kAnswerPatience)) ::shutdown(connection, SHUT_WR);
}

std::string MetricsPort::Answer(const std::string& request) const {
  const std::string_view line = std::string_view(request).substr(0, request.find("\r\n"));
  const size_t space = line.find(' ');
  const std::string_view method = line.substr(0, space);
  if (space == std::string_view::npos) return Refusal("400 Bad Request");
  if (method != "GET" && method != "HEAD") return Refusal("405 Method Not Allowed");
  const std::string_view target = line.substr(space + 1, line.find(' ', space + 1) - space - 1);
  if (target.substr(0, target.find('?')) != "/metrics") return Refusal("404 Not Found");
  const bool open = request.find("application/openmetrics-text") != std::string::npos;
  const TextFormat format = open ? TextFormat::kOpenMetrics : TextFormat::kPrometheus;
  return Response("200 OK", ContentType(format), render_(format), method == "GET");
}

absl::StatusOr<std::string> FetchMetrics(const std::string& socket, TextFormat format,
                                         std::chrono::milliseconds patience) {
  const Clock::time_point deadline = Clock::now() + patience;
  CKPTD_ASSIGN_OR_RETURN(const UniqueFd fd, Connect(socket));
  const std::string request = fmt::format("GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {}\r\n\r\n",
                                          ContentType(format));
  std::string text;
  const auto never = [](const std::string&) { return false; };
  if (!WriteAll(fd.get(), request, deadline) ||
      !ReadUntil(fd.get(), never, kMaxAnswer, deadline, text)) {
    return Unreachable(socket, "it does not answer");
  }
  const size_t head = text.find(kHeadEnd);
  if (text.rfind("HTTP/1.1 200 ", 0) != 0 || head == std::string::npos || text.size() > kMaxAnswer) {
    return Unreachable(socket, "its answer is none");
  }
  return text.substr(head + kHeadEnd.size());
}

}  // namespace ckptd
