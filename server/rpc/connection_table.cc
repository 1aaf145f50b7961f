#include "server/rpc/connection_table.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "absl/strings/str_replace.h"

namespace ckptd {
namespace {

using Clock = std::chrono::steady_clock;

// As gRPC writes it, but without the escapes of a URI. Empty on a Unix socket.
std::string PeerOf(int socket) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  char text[INET6_ADDRSTRLEN] = {};
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &bytes) != 0) return "";
  if (address.ss_family == AF_INET) {
    const auto& in = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    return fmt::format("ipv4:{}:{}", text, ntohs(in.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  const auto& in = reinterpret_cast<const sockaddr_in6&>(address);
  if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
    ::inet_ntop(AF_INET, &in.sin6_addr.s6_addr[12], text, sizeof(text));
    return fmt::format("ipv4:{}:{}", text, ntohs(in.sin6_port));
  }
  ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof(text));
  const std::string scope = in.sin6_scope_id == 0 ? "" : fmt::format("%{}", in.sin6_scope_id);
  return fmt::format("ipv6:[{}{}]:{}", text, scope, ntohs(in.sin6_port));
}

ino_t InodeOf(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

uint64_t BytesFrom(int socket) {
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 ? info.tcpi_bytes_received
                                                                         : 0;
}

// gRPC reads the end of it and closes it. On TCP what has arrived already is dropped, which gRPC might
// take minutes to read.
void Cut(int socket) {
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  ::connect(socket, &nobody, sizeof(nobody));
  ::shutdown(socket, SHUT_RDWR);
}

}  // namespace

UniqueFd ConnectionTable::Pin(const Connection& connection) {
  UniqueFd pinned(::fcntl(connection.fd, F_DUPFD_CLOEXEC, 0));
  if (pinned.valid() && InodeOf(pinned.get()) != connection.inode) pinned.Reset();
  return pinned;
}

void ConnectionTable::ForgetEnded() {
  const auto ended = [](const Connection& one) { return InodeOf(one.fd) != one.inode; };
  unproven_.remove_if(ended);
  proven_.remove_if(ended);
}

bool ConnectionTable::HasRoom() const {
  return unproven_.size() < limits_.unproven && unproven_.size() + proven_.size() < limits_.open;
}

ConnectionTable::Room ConnectionTable::MakeRoom() {
  MutexLock lock(mutex_);
  if (HasRoom()) return Room::kYes;
  ForgetEnded();
  while (!HasRoom()) {
    if (unproven_.empty()) return Room::kNo;
    const Connection& oldest = unproven_.front();
    if (Clock::now() - oldest.since < kGrace) return Room::kLater;
    const UniqueFd pinned = Pin(oldest);
    if (pinned.valid() && BytesFrom(pinned.get()) > limits_.proving_bytes) {
      proven_.splice(proven_.end(), unproven_, unproven_.begin());
      continue;
    }
    if (pinned.valid()) Cut(pinned.get());
    unproven_.pop_front();
  }
  return Room::kYes;
}

void ConnectionTable::Add(int connection) {
  MutexLock lock(mutex_);
  unproven_.push_back({connection, InodeOf(connection), PeerOf(connection), Clock::now()});
}

void ConnectionTable::Prove(std::string_view peer) {
  MutexLock lock(mutex_);
  if (unproven_.empty()) return;
  const std::string plain =
      absl::StrReplaceAll(std::string(peer), {{"%5B", "["}, {"%5D", "]"}, {"%25", "%"}});
  const auto found = std::find_if(unproven_.begin(), unproven_.end(),
                                  [&](const Connection& one) { return one.peer == plain; });
  if (found == unproven_.end() || plain.empty()) return;
  if (limits_.bytes_per_call == kUnlimited) return proven_.splice(proven_.end(), unproven_, found);
  const UniqueFd pinned = Pin(*found);
  if (pinned.valid()) found->bytes = BytesFrom(pinned.get());
}

bool ConnectionTable::Tend() {
  if (limits_.bytes_per_call == kUnlimited) return false;
  MutexLock lock(mutex_);
  ForgetEnded();
  for (const Connection& one : unproven_) {
    const UniqueFd pinned = Pin(one);
    if (pinned.valid() && BytesFrom(pinned.get()) - one.bytes > limits_.bytes_per_call) {
      Cut(pinned.get());
    }
  }
  return !unproven_.empty();
}

size_t PartOfDescriptors(size_t nth) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 8;
  return std::max<size_t>(8, limit.rlim_cur / nth);
}

}  // namespace ckptd
