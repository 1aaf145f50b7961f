#include "server/rpc/fd_server.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/fd_passing.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"
#include "server/rpc/connection_table.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

constexpr int kTickMs = 500;
// How long to ignore the backlog if this process is out of descriptors. Without a pause poll
// would report the backlog again at once.
constexpr int kPauseMs = 100;
// Connections to accept before other connections are served.
constexpr size_t kAcceptedAtOnce = 64;
constexpr size_t kReadAtOnce = 64 << 10;  // bytes of paths
// How often to look whether a client has received its descriptors, while another message waits.
constexpr int kLookMs = 2;
// Parts of this process's descriptors. The kernel's limit has the same value, for all of the user's
// processes together.
constexpr size_t kMessagePart = 64;
constexpr size_t kUnreceivedPart = 2;
constexpr size_t kHeldPart = 8;
// Where answers that are held up hold more than that, each of them has this time only.
constexpr std::chrono::milliseconds kScarce{100};
constexpr size_t kMostNamed = 4;

// Header of every message, 16 bytes little-endian.
struct Header {
  std::array<char, 4> magic = {'C', 'K', 'P', '1'};
  uint32_t status = 0;
  uint32_t fds_here = 0;
  uint32_t fds_to_come = 0;
};
static_assert(sizeof(Header) == 16);

absl::Status Send(int socket, const Header& header, std::span<const int> fds) {
  return SendWithFds(socket, std::as_bytes(std::span(&header, 1)), fds, Clock::now());
}

// Descriptors that were sent have not been received while bytes are on the way.
bool AllReceived(int socket) {
  int bytes = 0;
  return ::ioctl(socket, SIOCOUTQ, &bytes) != 0 || bytes == 0;
}

// Descriptors that answers under way hold in this process.
template <typename Connections>
size_t HeldBy(const Connections& connections) {
  size_t held = 0;
  for (const auto& one : connections) {
    if (one.handover.has_value()) held += one.handover->fds.size();
  }
  return held;
}

void SendError(int socket, const absl::Status& status) {
  const std::string sentence = MessageOf(status);
  Header header;
  header.status = static_cast<uint32_t>(status.code());
  const auto length = static_cast<uint32_t>(sentence.size());
  std::string message(sizeof(header) + sizeof(length), '\0');
  std::memcpy(message.data(), &header, sizeof(header));
  std::memcpy(message.data() + sizeof(header), &length, sizeof(length));
  message += sentence;
  // A client that does not read its error does not matter.
  (void)SendWithFds(socket, std::as_bytes(std::span(message)), {}, Clock::now());
}

}  // namespace

absl::StatusOr<std::unique_ptr<FdServer>> FdServer::Start(const std::string& path,
                                                          LeaseTable& leases, Options options,
                                                          std::vector<Adopted> adopted) {
  const std::optional<gid_t> group = options.policy.group;
  CKPTD_ASSIGN_OR_RETURN(UnixListener listener,
                         UnixListener::Open(path, group.has_value() ? 0660 : 0600, group));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return ErrnoStatus(errno, "creating an eventfd");
  return std::unique_ptr<FdServer>(new FdServer(leases, std::move(listener), std::move(wake),
                                                std::move(options), std::move(adopted)));
}

FdServer::FdServer(LeaseTable& leases, UnixListener listener, UniqueFd wake, Options options,
                   std::vector<Adopted> adopted)
    : leases_(leases),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      options_(std::move(options)),
      max_unproven_(MaxUnprovenConnections(kMaxUnproven)),
      max_passed_(MaxUnprovenConnections(kMaxPassed)),
      per_message_(std::min(kMaxFdsPerMessage, PartOfDescriptors(kMessagePart))),
      max_unreceived_(PartOfDescriptors(kUnreceivedPart)) {
  for (Adopted& one : adopted) {
    Connection& connection = connections_.emplace_back();
    connection.socket = std::move(one.socket);
    connection.lease = std::move(one.lease);
  }
  thread_ = std::thread([this] { Loop(); });
}

FdServer::~FdServer() {
  const uint64_t one = 1;
  if (::write(wake_.get(), &one, sizeof(one)) < 0) {
    Log(LogLevel::kWarn, "stopping the fd socket: {}", std::strerror(errno));
  }
  thread_.join();
}

bool FdServer::Poll(std::vector<bool>& ready) {
  std::vector<pollfd> polled;
  polled.push_back({wake_.get(), POLLIN, 0});
  const bool paused = Clock::now() < paused_until_;
  polled.push_back({listener_.get(), static_cast<short>(paused ? 0 : POLLIN), 0});
  int tick = paused ? kPauseMs : kTickMs;
  for (const Connection& connection : connections_) {
    // One that has left would report its end again and again.
    polled.push_back({connection.left ? -1 : connection.socket.get(), POLLIN, 0});
    if (connection.waits()) tick = kLookMs;
  }
  ::poll(polled.data(), polled.size(), tick);
  ready.assign(connections_.size(), false);
  for (size_t i = 0; i < connections_.size(); ++i) ready[i] = polled[i + 2].revents != 0;
  if (polled[1].revents != 0) Accept();
  return polled[0].revents == 0;
}

void FdServer::Loop() {
  std::vector<bool> ready;
  while (Poll(ready)) {
    for (size_t i = 0; i < ready.size(); ++i) {
      const bool open = connections_[i].socket.valid();
      if (ready[i] && open && !Serve(connections_[i])) Close(connections_[i]);
    }
    for (Connection& connection : connections_) {
      if (connection.socket.valid() && !Advance(connection)) Close(connection);
    }
    leases_.ExpireTokens();
    DropImpatient();
    connections_.erase(
        std::remove_if(connections_.begin(), connections_.end(),
                       [](const Connection& connection) { return !connection.socket.valid(); }),
        connections_.end());
  }
  for (Connection& connection : connections_) Close(connection);
}

// Accepts a limited number, so that clients with a lease or a token do not wait for all new ones.
void FdServer::Accept() {
  for (size_t i = 0; i < kAcceptedAtOnce; ++i) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EAGAIN) return;
      // Out of descriptors: a silent connection is closed in favour of a new one.
      if (CloseOldestUnproven()) continue;
      paused_until_ = Clock::now() + std::chrono::milliseconds(kPauseMs);
      return;
    }
    Admit(std::move(socket));
  }
}

void FdServer::Admit(UniqueFd socket) {
  auto who = CallerOf(socket.get());
  const Standing standing = who.ok() ? options_.policy.StandingOf(*who) : Standing::kStranger;
  Connection& connection = connections_.emplace_back();
  connection.socket = std::move(socket);
  if (!AccessPolicy::Allows(standing, Action::kUseOwn)) {
    Log(LogLevel::kWarn, "fd socket: a client of another user is refused");
    connection.refusal = NotAllowed(standing, Action::kUseOwn);
  }
  const auto process = CredentialsOf(connection.socket.get());
  if (process.ok()) connection.client = {process->uid, process->pid};
  if (connection.client.process == 0) connection.client.process = --unknown_;
  if (standing != Standing::kOwner) connection.client.process = 0;
  if (standing == Standing::kGuest) connection.guest = *std::move(who);
  connection.patience = Clock::now() + timing::kTokenPatience;
}

bool FdServer::Serve(Connection& connection) {
  if (connection.passing.has_value()) return ReadFiles(connection);
  if (!connection.proven() && !connection.shown) return ReadToken(connection);
  // A lease holder has nothing to send. Data is ignored; a hang-up ends the lease.
  std::array<char, 64> ignored = {};
  const ssize_t n = ::recv(connection.socket.get(), ignored.data(), ignored.size(), 0);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return true;
  return Leave(connection);
}

bool FdServer::ReadToken(Connection& connection) {
  std::array<char, LeaseTable::kTokenLength> bytes = {};
  const size_t missing = LeaseTable::kTokenLength - connection.token.size();
  const ssize_t n = ::recv(connection.socket.get(), bytes.data(), missing, 0);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  if (n == 0) return false;
  connection.token.append(bytes.data(), static_cast<size_t>(n));
  if (connection.token.size() < LeaseTable::kTokenLength) return true;
  if (!connection.refusal.ok()) {
    SendError(connection.socket.get(), connection.refusal);
    return false;
  }
  if (!FilePassing::IsHeader(connection.token)) {
    connection.shown = true;
    connection.patience = Clock::now() + timing::kTokenPatience;
    return true;
  }
  const absl::Status begun = BeginPassing(connection);
  if (!begun.ok()) SendError(connection.socket.get(), begun);
  return begun.ok();
}

absl::Status FdServer::BeginPassing(Connection& connection) {
  CKPTD_ASSIGN_OR_RETURN(FilePassing passing, FilePassing::Begin(connection.token));
  size_t open = options_.rules->passed.count() + passing.files();
  size_t of_guest = passing.files();
  for (const Connection& other : connections_) {
    if (other.passing.has_value()) open += other.files;
    if (connection.guest.has_value() && other.client == connection.client) of_guest += other.files;
  }
  const bool too_many = open > max_passed_;
  const size_t most_of_guest = connection.guest.has_value() ? max_passed_ / 4 : max_passed_;
  if (too_many || of_guest > most_of_guest) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     fmt::format("passing {} files to the daemon: with them {} would be open, and "
                                 "it keeps at most {}{}; pass fewer, or raise its limit of open "
                                 "files (ulimit -n)",
                                 passing.files(), too_many ? open : of_guest,
                                 too_many ? max_passed_ : most_of_guest,
                                 too_many ? "" : " of one user"));
  }
  connection.files = passing.files();
  connection.passing = std::move(passing);
  return absl::OkStatus();
}

bool FdServer::ReadFiles(Connection& connection) {
  FilePassing& passing = *connection.passing;
  auto received = RecvWithFds(connection.socket.get(), std::min(passing.bytes_left(), kReadAtOnce),
                              std::min(passing.files_left(), kMaxFdsPerMessage), Clock::now());
  if (absl::IsDeadlineExceeded(received.status())) return true;
  absl::Status status = received.status();
  if (status.ok() && received->bytes.empty()) return false;
  if (status.ok()) status = passing.Add(received->bytes, std::move(received->fds));
  if (status.ok() && passing.complete()) status = KeepFiles(connection);
  if (!status.ok()) SendError(connection.socket.get(), status);
  connection.patience = Clock::now() + timing::kTokenPatience;
  return status.ok();
}

absl::Status FdServer::KeepFiles(Connection& connection) {
  CKPTD_ASSIGN_OR_RETURN(PassedFiles::Files files, connection.passing->Take());
  const PassedFiles::Owner owner{UserOf(connection.guest), JobFrom(connection.passing->job_key())};
  connection.passed = options_.rules->passed.Add(owner, std::move(files));
  connection.passing.reset();
  return Send(connection.socket.get(), Header(), {});
}

bool FdServer::Advance(Connection& connection) {
  if (connection.left) return !AllReceived(connection.socket.get());
  while (connection.waits()) {
    const bool scarce = connection.shown && HeldBy(connections_) > PartOfDescriptors(kHeldPart);
    if (scarce || !MaySendTo(connection.client)) {
      return Clock::now() < connection.patience || GiveUp(connection);
    }
    if (connection.shown && !Redeem(connection)) return false;
    const absl::Status sent = SendNext(connection);
    if (absl::IsResourceExhausted(sent)) {  // by the user's other processes
      connection.patience = std::min(connection.patience, Clock::now() + timing::kFdSend);
      return Clock::now() < connection.patience || GiveUp(connection);
    }
    if (!sent.ok()) {
      Log(LogLevel::kWarn, "{}: {}", connection.lease, MessageOf(sent));
      return Leave(connection);
    }
  }
  return true;
}

bool FdServer::MaySendTo(const Client& client) {
  size_t all = per_message_;
  for (Connection& other : connections_) {
    if (other.unreceived == 0 || !other.socket.valid()) continue;
    if (AllReceived(other.socket.get())) {
      other.unreceived = 0;
      continue;
    }
    if (other.client == client) return false;
    all += other.unreceived;
  }
  return all <= max_unreceived_;
}

bool FdServer::Redeem(Connection& connection) {
  connection.shown = false;
  const auto who = CredentialsOf(connection.socket.get());
  auto redeemed = leases_.Redeem(connection.token, who.ok() ? who->pid : 0,
                                 who.ok() ? static_cast<uint32_t>(who->uid) : 0);
  if (!redeemed.ok()) {
    SendError(connection.socket.get(), redeemed.status());
    return false;
  }
  connection.lease = redeemed->lease;
  leases_.Keep(connection.lease, connection.socket.get());
  connection.handover = Handover{std::move(redeemed->handle.fds)};
  return true;
}

absl::Status FdServer::SendNext(Connection& connection) {
  Handover& handover = *connection.handover;
  const size_t count = std::min(handover.fds.size() - handover.sent, per_message_);
  std::vector<int> raw;
  for (size_t i = 0; i < count; ++i) raw.push_back(handover.fds[handover.sent + i].get());
  Header header;
  header.fds_here = static_cast<uint32_t>(count);
  header.fds_to_come = static_cast<uint32_t>(handover.fds.size() - handover.sent - count);
  CKPTD_RETURN_IF_ERROR(Send(connection.socket.get(), header, raw));
  const bool first = handover.sent == 0;
  handover.sent += count;
  connection.unreceived = count;
  connection.patience = Clock::now() + timing::kTokenPatience;
  if (handover.sent == handover.fds.size()) connection.handover.reset();
  // Done even if not everything is sent, because a client may write to the part that it got.
  if (first) leases_.HandedOver(connection.lease);
  return absl::OkStatus();
}

bool FdServer::GiveUp(Connection& connection) {
  const absl::Status why = NotReceived(connection.client);
  Log(LogLevel::kWarn, "{}", MessageOf(why));
  SendError(connection.socket.get(), why);
  return Leave(connection);
}

absl::Status FdServer::NotReceived(const Client& client) {
  std::vector<std::string> names;
  for (const Connection& other : connections_) {
    if (other.unreceived == 0 || !other.socket.valid()) continue;
    const Client& who = other.client;
    names.push_back(who.process > 0 ? fmt::format("process {}", who.process)
                                    : fmt::format("a process of user {}", who.uid));
    if (who == client) {  // it waits for itself
      names = {names.back()};
      break;
    }
  }
  std::string sentence = fmt::format("no client of this daemon holds them; look for another "
                                     "program of user {} whose clients stand still", ::geteuid());
  if (!names.empty()) {
    const size_t all = names.size();
    names.resize(std::min(all, kMostNamed));
    sentence = fmt::format("{}{} received nothing for seconds; end what stands still, then acquire "
                           "the shard again",
                           fmt::join(names, ", "),
                           all == names.size() ? "" : fmt::format(" and {} more", all - names.size()));
  }
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                   "sending a shard's descriptors: too many are on their way; " + sentence);
}

bool FdServer::Leave(Connection& connection) {
  if (!connection.lease.empty()) leases_.End(std::exchange(connection.lease, ""));
  connection.shown = false;
  connection.handover.reset();
  connection.left = connection.unreceived > 0 && !AllReceived(connection.socket.get());
  return connection.left;
}

void FdServer::Close(Connection& connection) {
  if (!connection.lease.empty()) leases_.End(connection.lease);
  connection.socket.Reset();
  if (connection.passed == nullptr && !connection.passing.has_value()) return;
  try {
    // Closing a file may wait for its storage; no other client is to wait for that.
    std::thread([files = std::move(connection), rules = options_.rules]() mutable {
      files = Connection();
    }).detach();
  } catch (const std::system_error& error) {
    Log(LogLevel::kWarn, "fd socket: passed files are closed without a thread: {}", error.what());
  }
}

bool FdServer::CloseOldestUnproven() {
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), [](const auto& one) {
    return one.socket.valid() && !one.proven();
  });
  if (oldest == connections_.end()) return false;
  Close(*oldest);
  return true;
}

void FdServer::DropImpatient() {
  const auto now = Clock::now();
  if (HeldBy(connections_) > PartOfDescriptors(kHeldPart)) {
    for (Connection& one : connections_) {
      const bool stands_still = one.patience < now + timing::kTokenPatience - kScarce;
      if (one.handover.has_value() && stands_still) one.patience = now;
    }
  }
  size_t unproven = 0;
  // Newest first, so that the oldest ones are past the limit.
  for (auto at = connections_.rbegin(); at != connections_.rend(); ++at) {
    if (!at->socket.valid() || at->proven()) continue;
    const bool late = now > at->patience && !at->shown && !at->left;
    if (++unproven > max_unproven_ || late) Close(*at);
  }
}

}  // namespace ckptd
