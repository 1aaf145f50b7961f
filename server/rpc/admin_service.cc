#include "server/rpc/admin_service.h"

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/wire/sendable_text.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_status.h"

namespace ckptd {
namespace {

constexpr std::chrono::milliseconds kDrainPoll{500};
constexpr int kMaxAwaitingLeases = 16;  // each occupies a server thread

void FillMemory(const Node::Info& info, v1::MemoryInfo& out) {
  // The backend returns "host (why)".
  const size_t open = info.tier.find(" (");
  out.set_tier(info.tier.substr(0, open));
  if (open != std::string::npos) out.set_why(info.tier.substr(open + 2, info.tier.size() - open - 3));
  if (!info.tier_reason.empty()) {
    out.set_why(SendableText(fmt::format("{}; {}", out.why(), info.tier_reason)));
  }
  out.set_device_uuid(info.device);
  out.set_budget_bytes(info.memory.budget);
  out.set_used_bytes(info.memory.used);
  out.set_arena_bytes(info.memory.arena);
  out.set_arena_target_bytes(info.memory.arena_target);
  out.set_arena_why(info.arena_why);
  out.set_huge_page_bytes(info.memory.huge_pages);
  out.set_lingering_bytes(info.memory.lingering);
  out.set_staging_bytes(info.memory.staging);
  out.set_host_tier_bytes(info.host_tier_budget);
  out.set_host_tier_used_bytes(info.host_tier_used);
}

void FillKeeper(const KeeperState& keeper, v1::GetDaemonInfoResponse& out) {
  if (keeper.endpoint.empty()) return;
  out.mutable_keeper()->set_endpoint(keeper.endpoint);
  out.mutable_keeper()->set_connected(keeper.connected);
  out.mutable_keeper()->set_checkpoint_count(keeper.checkpoints);
  out.mutable_keeper()->set_lease_count(keeper.leases);
  for (const std::string& one : keeper.dropped) out.mutable_keeper()->add_dropped(SendableText(one));
}

void AddMember(const MemberState& member, v1::GetDaemonInfoResponse& out) {
  auto* one = out.add_members();
  one->set_rank(static_cast<int32_t>(member.identity.rank));
  one->set_address(member.identity.address);
  one->set_host(member.identity.host);
  one->set_pid(member.identity.pid);
  one->set_joined(member.joined);
  if (member.joined) {
    *one->mutable_since_heartbeat() = ToProto(Clock::now() - member.last_heartbeat);
  }
}

}  // namespace

grpc::Status AdminServiceImpl::UnloadCheckpoint(grpc::ServerContext*,
                                                const v1::UnloadCheckpointRequest* request,
                                                v1::UnloadCheckpointResponse* response) {
  const auto unloaded = node_.Unload(request->name(), request->force(), request->idle());
  if (!unloaded.ok()) return ToGrpc(unloaded.status());
  response->set_freed_bytes(unloaded->freed_bytes);
  response->set_cancelled(unloaded->cancelled);
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::PinCheckpoint(grpc::ServerContext*,
                                             const v1::PinCheckpointRequest* request,
                                             v1::PinCheckpointResponse* response) {
  const auto info = node_.catalog().Pin(request->name(), request->pinned());
  if (!info.ok()) return ToGrpc(info.status());
  *response->mutable_checkpoint() = ToProto(*info);
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::ListLeases(grpc::ServerContext*, const v1::ListLeasesRequest*,
                                          v1::ListLeasesResponse* response) {
  for (const LeaseInfo& lease : node_.leases().List()) {
    auto* one = response->add_leases();
    one->set_name(lease.name);
    one->set_checkpoint(lease.checkpoint);
    one->set_mode(ToProto(lease.mode));
    one->set_pid(lease.pid);
    one->set_uid(lease.uid);
    one->set_connected(lease.connected);
    *one->mutable_create_time() = ToProto(lease.created);
  }
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::GetDaemonInfo(grpc::ServerContext*,
                                             const v1::GetDaemonInfoRequest*,
                                             v1::GetDaemonInfoResponse* response) {
  const Node::Info info = node_.GetInfo();
  response->set_version(info.identity.version);
  response->set_job(info.identity.job);
  response->set_rank(static_cast<int32_t>(info.identity.rank));
  response->set_world_size(static_cast<int32_t>(info.identity.world_size));
  response->set_epoch(info.epoch);
  response->set_pid(info.identity.pid);
  *response->mutable_start_time() = ToProto(started_);
  response->set_state(info.state);
  response->set_detail(info.detail);
  FillMemory(info, *response->mutable_memory());
  for (const MemberState& member : info.members) AddMember(member, *response);
  if (info.members.empty()) AddMember({info.identity, true, Clock::now()}, *response);
  for (const auto& [key, value] : node_.options().config) {
    (*response->mutable_config())[key] = SendableText(value);
  }
  FillKeeper(info.keeper, *response);
  response->set_workload_socket(endpoints_.workload_socket);
  response->set_fd_socket(endpoints_.fd_socket);
  response->set_peer_address(endpoints_.peer_address);
  response->set_checkpoint_count(static_cast<uint32_t>(node_.catalog().List().size()));
  response->set_lease_count(static_cast<uint32_t>(node_.leases().List().size()));
  return grpc::Status::OK;
}

absl::StatusOr<size_t> AdminServiceImpl::AwaitLeases(const grpc::ServerContext& context,
                                                     Deadline deadline) {
  const auto room = [this] { --awaiting_leases_; };
  if (++awaiting_leases_ > kMaxAwaitingLeases) {
    room();
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kTooManyWaiting,
                     fmt::format("draining: {} clients wait for the leases of this daemon to end; "
                                 "it drains, ask again without waiting",
                                 kMaxAwaitingLeases));
  }
  size_t left = 0;
  Deadline slice;
  do {
    slice = std::min<Deadline>(deadline, Clock::now() + kDrainPoll);
    left = node_.leases().WaitUntilEmpty(slice);  // ends early if the daemon stops
  } while (left > 0 && Clock::now() >= slice && slice < deadline && !context.IsCancelled());
  room();
  return left;
}

grpc::Status AdminServiceImpl::DrainDaemon(grpc::ServerContext* context,
                                           const v1::DrainDaemonRequest* request,
                                           v1::DrainDaemonResponse* response) {
  node_.Drain();
  Log(LogLevel::kInfo, "draining: no new work is accepted");
  size_t left = node_.leases().List().size();
  if (request->has_timeout()) {
    const auto longest = std::min<std::chrono::nanoseconds>(FromProto(request->timeout()),
                                                            std::chrono::hours(24));
    const auto awaited = AwaitLeases(*context, DeadlineOf(*context, longest));
    if (!awaited.ok()) return ToGrpc(awaited.status());
    left = *awaited;
    if (left > 0) {
      return ToGrpc(MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                              fmt::format("draining: {} lease{} still open; end their clients, "
                                          "or stop the daemon (clients keep what they mapped)",
                                          left, left == 1 ? " is" : "s are")));
    }
  }
  response->set_remaining_leases(static_cast<uint32_t>(left));
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::TrimMemory(grpc::ServerContext*, const v1::TrimMemoryRequest*,
                                          v1::TrimMemoryResponse* response) {
  const uint64_t freed = node_.Trim();
  const MemoryUsage usage = node_.GetInfo().memory;
  Log(LogLevel::kInfo, "memory: {:.1f} MB were given back on request",
      static_cast<double>(freed) / 1e6);
  response->set_freed_bytes(freed);
  response->set_used_bytes(usage.used);
  response->set_lingering_bytes(usage.lingering);
  return grpc::Status::OK;
}

grpc::Status AdminServiceImpl::SetLogLevel(grpc::ServerContext*,
                                           const v1::SetLogLevelRequest* request,
                                           v1::SetLogLevelResponse* response) {
  LogLevel level = LogLevel::kInfo;
  if (!ParseLogLevel(request->level(), level)) {
    return ToGrpc(MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                            fmt::format("setting the log level to \"{}\": there is no such level; "
                                        "use trace, debug, info, warn, error or off",
                                        request->level())));
  }
  response->set_previous_level(std::string(NameOf(ckptd::SetLogLevel(level))));
  return grpc::Status::OK;
}

}  // namespace ckptd
