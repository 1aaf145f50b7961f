#include "server/keeper/keeper_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/keeper/keeper_wire.h"
#include "server/keeper/kept_entries.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;
// The keeper answers within microseconds, unless it is stopped.
constexpr std::chrono::seconds kAnswerPatience{2};
constexpr std::chrono::milliseconds kRetry{50};
constexpr std::chrono::milliseconds kWatch{200};

v1::KeeperRequest NewRequest() {
  v1::KeeperRequest request;
  request.set_format(kKeeperFormat);
  return request;
}

bool HungUp(int socket) {
  pollfd polled = {socket, 0, 0};
  return ::poll(&polled, 1, 0) == 1;
}

absl::Status StatusOf(const v1::KeeperResponse& answer) {
  if (answer.code() == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(answer.code()), answer.message());
}

struct Greeted {
  UniqueFd socket;
  StoredEntries entries;
};

absl::StatusOr<Greeted> Greet(const std::string& path, const std::string& owner, bool forget) {
  const Deadline deadline = Clock::now() + kAnswerPatience;
  Greeted greeted;
  CKPTD_ASSIGN_OR_RETURN(greeted.socket, ConnectToKeeper(path, deadline));
  v1::KeeperRequest request = NewRequest();
  request.mutable_hello()->set_owner(owner);
  request.mutable_hello()->set_forget(forget);
  CKPTD_RETURN_IF_ERROR(SendPacket(greeted.socket.get(), request, {}, deadline));
  KeptEntries taken;  // the same rules as on the other side
  CKPTD_RETURN_IF_ERROR(taken.Begin(owner, false));
  for (;;) {
    CKPTD_ASSIGN_OR_RETURN(Packet<v1::KeeperResponse> answer,
                           ReceiveMessage<v1::KeeperResponse>(greeted.socket.get(), deadline));
    CKPTD_RETURN_IF_ERROR(StatusOf(answer.message));
    if (answer.message.name().empty()) break;
    CKPTD_RETURN_IF_ERROR(taken.Put(owner, answer.message.name(), std::move(answer.fds),
                                    answer.message.fds_to_come()));
  }
  greeted.entries = taken.Take(owner);
  return greeted;
}

}  // namespace

absl::StatusOr<UniqueFd> ConnectToKeeper(const std::string& path, Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd socket, ConnectUnix(path, deadline, SOCK_SEQPACKET));
  CKPTD_ASSIGN_OR_RETURN(const PeerCredentials who, CredentialsOf(socket.get()));
  if (who.uid == 0 || who.uid == ::geteuid()) return socket;
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kConfigInvalid,
                   fmt::format("connecting to the keeper at {}: user {} listens there, neither this "
                               "user nor root; choose another --keeper",
                               path, who.uid));
}

void EndKeeper(int connection, Deadline deadline) {
  v1::KeeperRequest request = NewRequest();
  request.mutable_end();
  if (!SendPacket(connection, request, {}, deadline).ok()) return;
  (void)ReceiveMessage<v1::KeeperResponse>(connection, deadline);
}

std::unique_ptr<KeeperClient> KeeperClient::Start(std::string path, std::string owner,
                                                  std::chrono::milliseconds patience) {
  std::unique_ptr<KeeperClient> client(new KeeperClient(std::move(path), std::move(owner)));
  const Deadline deadline = Clock::now() + patience;
  absl::StatusOr<Greeted> greeted = Greet(client->path_, client->owner_, false);
  while (!greeted.ok() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kRetry);  // there is no event for a socket that is not there yet
    greeted = Greet(client->path_, client->owner_, false);
  }
  if (greeted.ok()) {
    MutexLock lock(client->mutex_);
    client->socket_ = std::move(greeted->socket);
    client->entries_ = std::move(greeted->entries);
  } else {
    Log(LogLevel::kWarn,
        "no keeper answers at {}, so nothing is taken over: {}; one that comes later gets all that is "
        "held here",
        client->path_, MessageOf(greeted.status()));
  }
  client->watcher_ = std::thread([raw = client.get()] { raw->Watch(); });
  return client;
}

KeeperClient::~KeeperClient() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  watcher_.join();
}

bool KeeperClient::connected() const {
  MutexLock lock(mutex_);
  return socket_.valid() && !HungUp(socket_.get());
}

absl::StatusOr<StoredEntries> KeeperClient::Entries() {
  MutexLock lock(mutex_);
  return Duplicates(entries_);
}

void KeeperClient::Put(const std::string& name, std::vector<UniqueFd> fds) {
  MutexLock lock(mutex_);
  entries_[name] = std::move(fds);
  if (socket_.valid()) Note(PutNow(name), "keeping " + name);
}

void KeeperClient::Remove(const std::string& name) {
  MutexLock lock(mutex_);
  if (entries_.erase(name) == 0 || !socket_.valid()) return;
  v1::KeeperRequest request = NewRequest();
  request.mutable_remove()->set_name(name);
  Note(Ask(request), "removing " + name);
}

absl::Status KeeperClient::Ask(const v1::KeeperRequest& request) {
  const Deadline deadline = Clock::now() + kAnswerPatience;
  CKPTD_RETURN_IF_ERROR(SendPacket(socket_.get(), request, {}, deadline));
  return Answer(deadline);
}

absl::Status KeeperClient::Answer(Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(const Packet<v1::KeeperResponse> answer,
                         ReceiveMessage<v1::KeeperResponse>(socket_.get(), deadline));
  return StatusOf(answer.message);
}

absl::Status KeeperClient::PutNow(const std::string& name) {
  v1::KeeperRequest request = NewRequest();
  request.mutable_put()->set_name(name);
  const Deadline deadline = Clock::now() + kAnswerPatience;
  const auto fill = [&](uint32_t to_come) {
    request.mutable_put()->set_fds_to_come(to_come);
    return request;
  };
  return SendEntry(socket_.get(), entries_.at(name), deadline, fill,
                   [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return Answer(deadline); });
}

void KeeperClient::Note(const absl::Status& status, const std::string& doing) {
  if (status.ok()) return;
  Log(LogLevel::kWarn, "{}: {}", doing, MessageOf(status));
  // An answer that comes too late would be taken for that to the next request. What was said last
  // is heard all the same, before a new connection's hello.
  if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) socket_.Reset();
}

void KeeperClient::Watch() {
  for (;;) {
    {
      MutexLock lock(mutex_);
      const auto stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; };
      if (changed_.WaitUntil(mutex_, Clock::now() + kWatch, stopping)) return;
      if (socket_.valid() && HungUp(socket_.get())) {
        Log(LogLevel::kWarn, "the keeper at {} has ended; the next one gets all that it had", path_);
        socket_.Reset();
      }
      if (socket_.valid()) continue;
    }
    Refill();
  }
}

// Greets without the lock, because a keeper that is stopped makes that long.
void KeeperClient::Refill() {
  absl::StatusOr<Greeted> greeted = Greet(path_, owner_, true);
  if (!greeted.ok()) return;
  MutexLock lock(mutex_);
  socket_ = std::move(greeted->socket);
  for (const auto& [name, fds] : entries_) {
    Note(PutNow(name), "keeping " + name);
    if (!socket_.valid()) return;
  }
  Log(LogLevel::kInfo, "connected to the keeper at {}, which has {} entries of this daemon", path_,
      entries_.size());
}

}  // namespace ckptd
