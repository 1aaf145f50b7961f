#include "server/rpc/grpc_server.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/at_once.h"
#include "common/base/fd_passing.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr char kUnixPrefix[] = "unix:";
// sizeof(sockaddr_un::sun_path) - 1.
constexpr size_t kMaxSocketPath = 107;
// Shares of this process's descriptors that may be open before a server refuses connections.
// Strangers are refused first.
constexpr double kAnybodyMayOpen = 0.75;
constexpr double kProbesMayOpen = 0.5;
// One part of so many of the descriptors, at most kMostUnproven connections.
constexpr size_t kPeersPart = 2;
constexpr size_t kSmallPart = 16;
constexpr size_t kMostUnproven = 1024;
// Certificates in a TLS handshake have 100 KB at most.
constexpr uint64_t kLongerThanHandshake = 256 << 10;
// A probe's call is a name of at most 4 KB.
constexpr uint64_t kProbesBytes = 64 << 10;

size_t SmallPart() { return std::min(PartOfDescriptors(kSmallPart), kMostUnproven); }

ConnectionTable::Limits LimitsOfTcp(const GrpcServer::Options& options) {
  ConnectionTable::Limits limits;
  if (options.only_probes) {
    // Nobody is known here, so the oldest goes, whatever it does.
    limits.open = SmallPart();
    limits.bytes_per_call = kProbesBytes;
    return limits;
  }
  limits.open = PartOfDescriptors(kPeersPart);
  limits.unproven = SmallPart();
  if (options.credentials != nullptr) limits.proving_bytes = kLongerThanHandshake;
  return limits;
}

absl::Status Busy(const std::string& address) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("listening on {}: another daemon has it; stop that one, or choose "
                               "another --job, --run-dir or --rendezvous",
                               address));
}

absl::StatusOr<FileLock> LockBeside(const std::string& path, const std::string& address) {
  if (path.size() > kMaxSocketPath) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("listening on {}: the path has {} bytes, Unix sockets allow {}; "
                                 "choose a shorter --run-dir or --job",
                                 address, path.size(), kMaxSocketPath));
  }
  absl::StatusOr<FileLock> lock = FileLock::Take(path + ".lock");
  if (lock.status().code() == absl::StatusCode::kFailedPrecondition) return Busy(address);
  return lock;
}

std::shared_ptr<grpc::ResourceQuota> QuotaFor(const GrpcServer::Options& options) {
  auto quota = std::make_shared<grpc::ResourceQuota>("ckptd");
  quota->SetMaxThreads(options.max_threads);
  if (options.max_held_bytes > 0) quota->Resize(options.max_held_bytes);
  return quota;
}

}  // namespace

GrpcServer::GrpcServer(Options options)
    : options_(std::move(options)),
      from_tcp_(LimitsOfTcp(options_)),
      of_strangers_({.open = SmallPart()}) {}

GrpcEndpoint::Options GrpcServer::EndpointOptions() const {
  return {.address = options_.address,
          .max_receive_bytes = options_.max_receive_bytes,
          .credentials = options_.credentials,
          .quota = QuotaFor(options_),
          .only_probes = options_.only_probes};
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    Options options, const std::vector<grpc::Service*>& services) {
  std::unique_ptr<GrpcServer> result(new GrpcServer(std::move(options)));
  CKPTD_RETURN_IF_ERROR(result->Listen());
  GrpcServer* const raw = result.get();
  GrpcEndpoint::Options own = result->EndpointOptions();
  if (result->tcp_.socket.valid()) {
    own.on_call = [raw](std::string_view peer) { raw->from_tcp_.Prove(peer); };
  }
  CKPTD_ASSIGN_OR_RETURN(result->own_, GrpcEndpoint::Start(own, services));
  CKPTD_ASSIGN_OR_RETURN(
      result->acceptor_,
      Acceptor::Start(result->Listener(),
                      {.address = result->options_.address,
                       .may_open = own.only_probes ? kProbesMayOpen : kAnybodyMayOpen,
                       .most_waiting = SmallPart(),
                       .take = [raw](UniqueFd& connection) { return raw->Take(connection); },
                       .tend = [raw] { return raw->from_tcp_.Tend(); }}));
  return result;
}

absl::Status GrpcServer::Listen() {
  const std::string& address = options_.address;
  if (address.rfind(kUnixPrefix, 0) != 0) {
    CKPTD_ASSIGN_OR_RETURN(tcp_, ListenTcp(address));
    return absl::OkStatus();
  }
  const std::string path = address.substr(sizeof(kUnixPrefix) - 1);
  CKPTD_ASSIGN_OR_RETURN(lock_, LockBeside(path, address));
  // The directory is 0700 already, or 0750 for the group. The socket itself is made so, too.
  const std::optional<gid_t> group =
      options_.for_guest == nullptr ? std::nullopt : options_.policy.group;
  CKPTD_ASSIGN_OR_RETURN(unix_,
                         UnixListener::OpenLocked(path, group.has_value() ? 0660 : 0600, group));
  return absl::OkStatus();
}

Acceptor::Taken GrpcServer::Give(UniqueFd& connection, const Door& door) {
  if (door.endpoint == nullptr) return Acceptor::Taken::kNo;
  if (door.connections != nullptr) {
    switch (door.connections->MakeRoom()) {
      case ConnectionTable::Room::kYes: break;
      case ConnectionTable::Room::kLater: return Acceptor::Taken::kLater;
      case ConnectionTable::Room::kNo: return Acceptor::Taken::kNo;
    }
    door.connections->Add(connection.get());
  }
  door.endpoint->Take(std::move(connection));
  return Acceptor::Taken::kYes;
}

Acceptor::Taken GrpcServer::Take(UniqueFd& connection) {
  if (tcp_.socket.valid()) return Give(connection, {own_.get(), &from_tcp_});
  const absl::StatusOr<Caller> caller = CallerOf(connection.get());
  if (!caller.ok()) {
    Log(LogLevel::kWarn, "{}: a connection is closed: {}", options_.address,
        MessageOf(caller.status()));
    return Acceptor::Taken::kYes;
  }
  MutexLock lock(mutex_);
  return Give(connection, DoorFor(*caller));
}

GrpcServer::Door GrpcServer::DoorFor(const Caller& caller) {
  const Standing standing = options_.policy.StandingOf(caller);
  switch (standing) {
    case Standing::kOwner: return {own_.get(), nullptr};
    case Standing::kGuest:
      if (options_.for_guest != nullptr) return DoorOfGuest(caller);
      [[fallthrough]];
    case Standing::kStranger: return {Refusing(standing), &of_strangers_};
  }
  return {};
}

GrpcServer::Door GrpcServer::DoorOfGuest(const Caller& guest) {
  auto at = guests_.find(guest);
  if (at == guests_.end()) {
    if (guests_.size() >= kMostGuests) {
      const auto earlier = [](const auto& a, const auto& b) {
        return a.second.connected < b.second.connected;
      };
      guests_.erase(std::min_element(guests_.begin(), guests_.end(), earlier));
    }
    Guest made;
    made.services = options_.for_guest(guest);
    std::vector<grpc::Service*> services;
    for (const auto& service : made.services) services.push_back(service.get());
    auto endpoint = GrpcEndpoint::Start(EndpointOptions(), services);
    if (!endpoint.ok()) {
      Log(LogLevel::kError, "{}", MessageOf(endpoint.status()));
      return {};
    }
    made.endpoint = *std::move(endpoint);
    made.connections = std::make_unique<ConnectionTable>(
        ConnectionTable::Limits{.open = SmallPart()});
    Log(LogLevel::kInfo, "{}: uid {} is served as a guest", options_.address, guest.uid);
    at = guests_.emplace(guest, std::move(made)).first;
  }
  at->second.connected = ++connections_;
  return {at->second.endpoint.get(), at->second.connections.get()};
}

GrpcEndpoint* GrpcServer::Refusing(Standing standing) {
  std::unique_ptr<GrpcEndpoint>& refusing = refusing_[standing];
  if (refusing != nullptr) return refusing.get();
  const Action action = options_.for_guest == nullptr ? Action::kAdminister : Action::kLoad;
  auto made = GrpcEndpoint::StartRefusing(EndpointOptions(), NotAllowed(standing, action));
  if (made.ok()) {
    refusing = *std::move(made);
  } else {
    Log(LogLevel::kError, "{}", MessageOf(made.status()));
  }
  return refusing.get();
}

void GrpcServer::Shutdown(std::chrono::milliseconds patience) {
  acceptor_.reset();
  unix_.Close();
  tcp_.socket.Reset();
  if (own_ == nullptr) return;
  // Their calls end at the same time.
  std::vector<GrpcEndpoint*> all = {own_.get()};
  MutexLock lock(mutex_);
  for (auto& [caller, guest] : guests_) all.push_back(guest.endpoint.get());
  for (auto& [standing, refusing] : refusing_) all.push_back(refusing.get());
  AtOnce(all.size(), all.size(), [&](size_t i) { all[i]->Shutdown(patience); });
  guests_.clear();
  refusing_.clear();
  own_.reset();
  lock_.Release();
}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::seconds(1)); }

}  // namespace ckptd
