#include "client/cpp/channel.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <pwd.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/base/trusted_path.h"

namespace ckptd {
inline namespace client {
namespace {

// Error details are sent as metadata. The default of 8 KiB would cut long lists.
constexpr int kMaxMetadataBytes = 256 << 10;
// A source's metadata is in one message, which may exceed the default of 4 MiB.
constexpr int kMaxMessageBytes = 64 << 20;
// A stalled daemon keeps its connection open. So during calls it is pinged, and the connection
// ends without an answer.
constexpr int kKeepaliveTimeMs = 5000;
constexpr int kKeepaliveTimeoutMs = 2000;
// The kernel accepts connections for a stalled daemon. A call waits for one of them no longer
// than this.
constexpr int kReconnectMs = 1000;

// Daemons run there, so starting others would not help.
absl::Status MayNotEnter(const Address& address) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kDaemonUnreachable,
                   fmt::format("connecting to the daemon at {} (chosen by {}): this user may not open that "
                               "socket; run as the daemon's user, as root, or (but for verbs of "
                               "administration) in the group that the daemon's --allow-gid names",
                               address.Shown(), address.chosen_by),
                   {{"address", address.Shown()}, {"chosen_by", address.chosen_by}});
}

absl::Status Unreachable(absl::StatusCode code, const Address& address, std::string_view why) {
  return MakeError(code, reason::kDaemonUnreachable,
                   fmt::format("connecting to the daemon at {} (chosen by {}): {}; start the job's "
                               "daemons with `ckptd launch --nproc N`, or name another by --address or CKPTD_ADDRESS",
                               address.Shown(), address.chosen_by, why),
                   {{"address", address.Shown()}, {"chosen_by", address.chosen_by}});
}

// The user whose daemons the environment says are to be trusted, by name or number.
std::optional<uid_t> NamedAsTrusted() {
  const char* const named = std::getenv("CKPTD_DAEMON_UID");
  if (named == nullptr || *named == '\0') return std::nullopt;
  uid_t number = 0;
  const char* const end = named + std::strlen(named);
  if (const auto parsed = std::from_chars(named, end, number);
      parsed.ec == std::errc() && parsed.ptr == end) {
    return number;
  }
  std::vector<char> room(64 << 10);
  passwd record = {};
  passwd* found = nullptr;
  ::getpwnam_r(named, &record, room.data(), room.size(), &found);
  return found == nullptr ? std::nullopt : std::optional(found->pw_uid);
}

// Another user may have made a socket at the daemon's path, or may be able to put one there before
// gRPC connects to it. Root is asked to name whom it trusts, as everybody is: it has most to lose.
absl::StatusOr<pid_t> CheckOwner(const Address& address, int connection) {
  CKPTD_ASSIGN_OR_RETURN(const PeerCredentials owner, CredentialsOf(connection));
  std::vector<uid_t> trusted = {0, ::geteuid()};
  if (const auto named = NamedAsTrusted()) trusted.push_back(*named);
  if (std::find(trusted.begin(), trusted.end(), owner.uid) == trusted.end()) {
    return Unreachable(absl::StatusCode::kPermissionDenied, address,
                       fmt::format("user {} listens there, neither this user nor root "
                                   "(CKPTD_DAEMON_UID={} trusts it)",
                                   owner.uid, owner.uid));
  }
  if (const auto why = WhyPathIsUnsafe(address.path, std::move(trusted))) {
    return Unreachable(absl::StatusCode::kPermissionDenied, address,
                       fmt::format("{}, so another user could put a socket there (CKPTD_DAEMON_UID "
                                   "names one to trust)",
                                   *why));
  }
  return owner.pid;
}

// gRPC retries and loses the reason, so this tries one plain connection. Returns the pid of the
// process that listens there.
absl::StatusOr<pid_t> Probe(const Address& address, Timeout timeout) {
  const auto probe = ConnectUnix(address.path, std::chrono::steady_clock::now() + timeout);
  const absl::Status status = probe.status();
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return CheckOwner(address, probe->get());
    case absl::StatusCode::kPermissionDenied:
      return MayNotEnter(address);
    case absl::StatusCode::kUnavailable:
      return Unreachable(status.code(), address, "nothing listens there");
    case absl::StatusCode::kDeadlineExceeded:
      return Unreachable(absl::StatusCode::kUnavailable, address, "it accepts no connection");
    default:
      return WithContext(status, fmt::format("connecting to the daemon at {}", address.Shown()));
  }
}

// The kernel accepted the connection, so starting another daemon would not help.
absl::Status DoesNotAnswer(const Address& address, pid_t pid, Timeout timeout) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable,
                   fmt::format("connecting to the daemon at {} (chosen by {}): process {} listens "
                               "there, but has not answered within {} ms; see whether it is "
                               "stopped or overloaded (`ps -o stat,time -p {}`, its log), or name "
                               "another by --address or CKPTD_ADDRESS",
                               address.Shown(), address.chosen_by, pid, timeout.count(), pid),
                   {{"address", address.Shown()},
                    {"chosen_by", address.chosen_by},
                    {"pid", std::to_string(pid)}});
}

}  // namespace

absl::StatusOr<Connection> OpenConnection(const Address& address, const ConnectOptions& options) {
  pid_t listens = 0;
  if (!address.path.empty()) {
    CKPTD_ASSIGN_OR_RETURN(listens, Probe(address, options.connect_timeout));
  }
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMs / 10);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMs);
  // Not shared with other channels, so that the connection ends with this one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  Connection connection;
  connection.address = address;
  connection.call_timeout = options.call_timeout;
  connection.gone_timeout = std::min(options.gone_timeout, options.call_timeout);
  connection.channel =
      grpc::CreateCustomChannel(address.target, grpc::InsecureChannelCredentials(), arguments);
  if (!connection.channel->WaitForConnected(std::chrono::system_clock::now() +
                                            options.connect_timeout)) {
    if (listens != 0) return DoesNotAnswer(address, listens, options.connect_timeout);
    return Unreachable(absl::StatusCode::kUnavailable, address,
                       fmt::format("no gRPC server answered within {} ms",
                                   options.connect_timeout.count()));
  }
  return connection;
}

}  // namespace client
}  // namespace ckptd
