#include "server/keeper/keeper.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTickMs = 500;
// A daemon reads its answers at once, or is stopped.
constexpr std::chrono::seconds kSendPatience{1};

}  // namespace

absl::StatusOr<std::unique_ptr<Keeper>> Keeper::Open(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(UnixListener listener, UnixListener::Open(path, 0600, {}, SOCK_SEQPACKET));
  return std::unique_ptr<Keeper>(new Keeper(std::move(listener)));
}

std::string Keeper::Run(int stop, std::chrono::milliseconds linger,
                        const std::function<void()>& alone) {
  auto last_seen = Clock::now();
  while (!ended_) {
    std::vector<pollfd> polled = {{stop, POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const auto& connection : connections_) polled.push_back({connection->socket.get(), POLLIN, 0});
    ::poll(polled.data(), polled.size(), kTickMs);
    if (polled[0].revents != 0) return "told to stop";
    const size_t known = polled.size() - 2;
    for (size_t i = 0; i < known && !ended_; ++i) {
      Connection& connection = *connections_[i];
      const bool ready = polled[i + 2].revents != 0 && connection.socket.valid();
      if (ready && !Serve(connection)) Close(connection);
    }
    if (polled[1].revents != 0) Accept();
    const size_t ended =
        std::erase_if(connections_, [](const auto& one) { return !one->socket.valid(); });
    if (ended > 0 && connections_.empty()) alone();
    if (!connections_.empty()) last_seen = Clock::now();
    if (linger.count() > 0 && Clock::now() - last_seen > linger) {
      return fmt::format("nobody was connected for {} s",
                         std::chrono::duration<double>(linger).count());
    }
  }
  return "a client has ended it";
}

void Keeper::Accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid() || connections_.size() >= kMaxConnections) return;
  const auto who = CredentialsOf(socket.get());
  if (!who.ok() || (who->uid != ::geteuid() && who->uid != 0)) {
    Log(LogLevel::kWarn, "a client of another user was refused");
    return;
  }
  connections_.push_back(std::make_unique<Connection>(Connection{std::move(socket), ""}));
}

bool Keeper::Serve(Connection& connection) {
  absl::StatusOr<Received> received = ReceivePacket(connection.socket.get(), Clock::now());
  absl::Status status = received.status();
  if (absl::IsUnavailable(status) || absl::IsInternal(status)) return false;
  if (absl::IsDeadlineExceeded(status)) return true;  // nothing is there
  if (status.ok()) {
    Packet<v1::KeeperRequest> packet;
    status = ParsePacket(received->bytes, packet.message);
    packet.fds = std::move(received->fds);
    if (status.ok()) status = Handle(connection, std::move(packet));
  }
  if (!status.ok()) Log(LogLevel::kWarn, "{}: {}", connection.owner, MessageOf(status));
  v1::KeeperResponse answer;
  answer.set_code(static_cast<int>(status.code()));
  answer.set_message(MessageOf(status).substr(0, kMaxKeeperPacket / 2));
  if (status.ok()) answer.set_message("done");  // a packet without bytes would be the end
  const absl::Status sent =
      SendPacket(connection.socket.get(), answer, {}, Clock::now() + kSendPatience);
  // The next read tells of a client that has gone, after all that it has said.
  return !absl::IsDeadlineExceeded(sent);
}

absl::Status Keeper::Handle(Connection& connection, Packet<v1::KeeperRequest> packet) {
  const v1::KeeperRequest& request = packet.message;
  if (request.format() != kKeeperFormat) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("keeping descriptors: the daemon speaks format {}, the keeper "
                                 "format {}; start the keeper again",
                                 request.format(), kKeeperFormat));
  }
  if (request.has_hello()) return Hello(connection, request.hello());
  if (request.has_end()) {
    ended_ = true;
    return absl::OkStatus();
  }
  if (connection.owner.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "keeping descriptors: the first packet must be a hello");
  }
  if (request.has_put()) {
    return entries_.Put(connection.owner, request.put().name(), std::move(packet.fds),
                        request.put().fds_to_come());
  }
  if (request.has_remove()) {
    entries_.Remove(connection.owner, request.remove().name());
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "keeping descriptors: the keeper does not know this request; start it again "
                   "with the daemon's version");
}

absl::Status Keeper::Hello(Connection& connection, const v1::KeeperHello& hello) {
  if (!connection.owner.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "keeping descriptors: a second hello on one connection");
  }
  // An owner's earlier connection counts until all that came over it was read.
  CKPTD_RETURN_IF_ERROR(entries_.Begin(hello.owner(), hello.forget()));
  connection.owner = hello.owner();
  return SendEntries(connection);
}

absl::Status Keeper::SendEntries(const Connection& connection) const {
  for (const auto& [name, fds] : entries_.Of(connection.owner)) {
    v1::KeeperResponse answer;
    answer.set_name(name);
    const auto fill = [&](uint32_t to_come) {
      answer.set_fds_to_come(to_come);
      return answer;
    };
    CKPTD_RETURN_IF_ERROR(SendEntry(connection.socket.get(), fds, Clock::now() + kSendPatience, fill,
                                    [] { return absl::OkStatus(); }));
  }
  return absl::OkStatus();
}

void Keeper::Close(Connection& connection) {
  if (!connection.owner.empty()) entries_.End(connection.owner);
  connection.socket.Reset();
}

}  // namespace ckptd
