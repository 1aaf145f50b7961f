#include "server/keeper/systemd_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/fd_passing.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr uint32_t kMaxPassed = 1 << 20;
constexpr std::chrono::seconds kPatience{2};

Deadline Soon() { return std::chrono::steady_clock::now() + kPatience; }

uint32_t NumberOf(const std::optional<std::string>& text) {
  uint32_t number = 0;
  return text.has_value() && absl::SimpleAtoi(*text, &number) ? number : 0;
}

// The entries that are complete, with their descriptors in order. The others are closed.
StoredEntries Assemble(std::map<std::pair<std::string, uint32_t>, UniqueFd> parts) {
  StoredEntries entries;
  for (auto& [key, fd] : parts) {
    const auto& [name, index] = key;
    std::vector<UniqueFd>& fds = entries[name];
    if (fds.size() == index) fds.push_back(std::move(fd));
  }
  std::erase_if(entries, [](const auto& entry) { return entry.second.empty(); });
  return entries;
}

absl::Status SendingFailed(int error) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kDaemonUnreachable,
                   fmt::format("telling systemd: {}", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SystemdStore>> SystemdStore::Take(const Environment& read, int first) {
  const std::optional<std::string> socket = read("NOTIFY_SOCKET");
  if (!socket.has_value() || socket->size() < 2 || socket->size() >= sizeof(sockaddr_un::sun_path)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                     "checking --keeper systemd: systemd has not started this process as a unit with "
                     "Type=notify and FileDescriptorStoreMax=; use such a unit, or `ckptd keep`");
  }
  std::unique_ptr<SystemdStore> store(new SystemdStore(*socket));
  if (NumberOf(read("LISTEN_PID")) != static_cast<uint32_t>(::getpid())) return store;
  const uint32_t count = std::min(NumberOf(read("LISTEN_FDS")), kMaxPassed);
  const std::vector<std::string> names = absl::StrSplit(read("LISTEN_FDNAMES").value_or(""), ':');
  std::map<std::pair<std::string, uint32_t>, UniqueFd> parts;
  for (uint32_t i = 0; i < count; ++i) {
    UniqueFd fd(first + static_cast<int>(i));
    ::fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
    const std::string name = i < names.size() ? names[i] : "";
    const size_t mark = name.rfind('#');
    uint32_t index = 0;
    if (mark == std::string::npos || !absl::SimpleAtoi(name.substr(mark + 1), &index)) continue;
    parts[{name.substr(0, mark), index}] = std::move(fd);
  }
  MutexLock lock(store->mutex_);
  store->entries_ = Assemble(std::move(parts));
  return store;
}

absl::StatusOr<StoredEntries> SystemdStore::Entries() {
  MutexLock lock(mutex_);
  return Duplicates(entries_);
}

void SystemdStore::Put(const std::string& name, std::vector<UniqueFd> fds) {
  MutexLock lock(mutex_);
  RemoveLocked(name);
  absl::Status sent;
  // The record comes last: without it the entry does not count.
  for (size_t i = fds.size(); i-- > 0 && sent.ok();) {
    sent = Notify(fmt::format("FDSTORE=1\nFDNAME={}#{}", name, i), fds[i].get());
  }
  if (!sent.ok()) Log(LogLevel::kWarn, "keeping {}: {}", name, MessageOf(sent));
  entries_[name] = std::move(fds);
}

void SystemdStore::Remove(const std::string& name) {
  MutexLock lock(mutex_);
  RemoveLocked(name);
}

void SystemdStore::RemoveLocked(const std::string& name) {
  const auto at = entries_.find(name);
  if (at == entries_.end()) return;
  absl::Status sent;
  for (size_t i = 0; i < at->second.size() && sent.ok(); ++i) {
    sent = Notify(fmt::format("FDSTOREREMOVE=1\nFDNAME={}#{}", name, i), -1);
  }
  if (sent.ok()) sent = Barrier();
  if (!sent.ok()) Log(LogLevel::kWarn, "removing {}: {}", name, MessageOf(sent));
  entries_.erase(at);
}

absl::Status SystemdStore::Notify(const std::string& text, int fd) const {
  const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SendingFailed(errno);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // an abstract socket
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return SendingFailed(errno);
  }
  const std::vector<int> fds(fd >= 0 ? 1 : 0, fd);
  return SendWithFds(socket.get(), std::as_bytes(std::span(text)), fds, Soon());
}

absl::Status SystemdStore::Barrier() const {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) return SendingFailed(errno);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  CKPTD_RETURN_IF_ERROR(Notify("BARRIER=1", writer.get()));
  writer.Reset();  // systemd's is the last one
  return WaitForFd(reader.get(), 0, Soon(), "waiting for systemd");
}

}  // namespace ckptd
