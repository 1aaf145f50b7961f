#include "server/rpc/checkpoint_service.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/wire/plan.h"
#include "common/wire/sendable_text.h"
#include "server/load/check_request.h"
#include "server/protocol/timing.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"
#include "server/rpc/handles.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/inspect_page.h"
#include "server/rpc/join_load.h"

namespace ckptd {
namespace {

constexpr int kMaxAwaitingEnd = 16;  // each occupies a server thread
// Each watch occupies a server thread.
constexpr int kMaxWatchers = 64;

}  // namespace

CallContext CheckpointServiceImpl::AskerOf(const grpc::ServerContext& context,
                                           const std::string& job_key) const {
  CallContext asker(DeadlineOf(context, timing::kLongestClientCall),
                    [&context] { return context.IsCancelled(); });
  asker.guest = guest_;
  asker.job = JobFrom(job_key);
  return asker;
}

absl::StatusOr<CheckpointInfo> CheckpointServiceImpl::Find(std::string_view doing,
                                                           const std::string& name) const {
  CKPTD_ASSIGN_OR_RETURN(CheckpointInfo info, node_.catalog().Get(name));
  CKPTD_RETURN_IF_ERROR(CheckUse(guest_, info.loaded_for, fmt::format("{} {}", doing, name)));
  return info;
}

// Further pages come from the index of the first one, without opening the source again.
absl::Status CheckpointServiceImpl::Inspect(const v1::InspectCheckpointRequest& request,
                                            const CallContext& asker,
                                            v1::InspectCheckpointResponse* response) {
  const std::string source = SourceOfText(request.source());
  std::shared_ptr<const CheckpointIndex> index;
  std::vector<std::string> remarks;
  if (!request.page_token().empty()) index = inspected_.Get(source, request.view());
  if (index == nullptr) {
    CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint opened, node_.Inspect(source, asker, request.view()));
    index = std::make_shared<const CheckpointIndex>(std::move(opened.index));
    remarks = std::move(opened.remarks);
  }
  CKPTD_ASSIGN_OR_RETURN(*response,
                         InspectPage(*index, request.page_token(), request.page_size(),
                                     request.values()));
  if (request.page_token().empty()) {
    for (const std::string& remark : remarks) response->add_remarks(SendableText(remark));
  }
  if (!response->next_page_token().empty()) {
    inspected_.Put(std::move(index), request.view());
    return absl::OkStatus();
  }
  index = nullptr;
  inspected_.Drop(source);
  return absl::OkStatus();
}

grpc::Status CheckpointServiceImpl::InspectCheckpoint(grpc::ServerContext* context,
                                                      const v1::InspectCheckpointRequest* request,
                                                      v1::InspectCheckpointResponse* response) {
  return ToGrpc(Inspect(*request, AskerOf(*context, request->job_key()), response));
}

grpc::Status CheckpointServiceImpl::PlanDevices(const grpc::ServerContext& context,
                                                const v1::PlanLoadRequest& request,
                                                v1::PlanLoadResponse& response) {
  const auto devices = DeviceMapRequestFrom(request);
  if (!devices.ok()) return ToGrpc(devices.status());
  const auto map = node_.Plan(*devices, AskerOf(context, request.spec().job_key()));
  if (!map.ok()) return ToGrpc(map.status());
  *response.mutable_device_map() = ToProto(*map);
  return grpc::Status::OK;
}

grpc::Status CheckpointServiceImpl::PlanLoad(grpc::ServerContext* context,
                                             const v1::PlanLoadRequest* request,
                                             v1::PlanLoadResponse* response) {
  if (request->has_device_map()) return PlanDevices(*context, *request, *response);
  auto load = FromProto(request->spec());
  if (!load.ok()) return ToGrpc(load.status());
  const auto dry = node_.Plan(*load, AskerOf(*context, request->spec().job_key()));
  if (!dry.ok()) return ToGrpc(dry.status());
  *response = ToProto(*dry);
  return grpc::Status::OK;
}

grpc::Status CheckpointServiceImpl::LoadCheckpoint(grpc::ServerContext*,
                                                   const v1::LoadCheckpointRequest* request,
                                                   v1::LoadCheckpointResponse* response) {
  auto load = FromProto(request->spec());
  if (!load.ok()) return ToGrpc(load.status());
  load->guest = guest_;
  const auto reply =
      node_.Load(std::move(load).value(), request->request_id(), !request->no_hold());
  if (!reply.ok()) return ToGrpc(reply.status());
  *response->mutable_checkpoint() = ToProto(reply->info);
  response->set_resident(reply->resident);
  for (const std::string& field : reply->differs) response->add_differs(field);
  return grpc::Status::OK;
}

absl::Status CheckpointServiceImpl::Watch(
    grpc::ServerContext* context, const std::string& name,
    grpc::ServerWriter<v1::WatchCheckpointResponse>* writer) {
  uint64_t seen = 0;
  uint64_t sent = 0;
  Clock::time_point sent_at;
  while (!context->IsCancelled()) {
    CKPTD_ASSIGN_OR_RETURN(const CheckpointInfo info,
                           node_.catalog().watchers().Watch(name, seen, Clock::now() + timing::kWatchPoll));
    const bool ended = info.state != CheckpointState::kLoading;
    const Clock::time_point now = Clock::now();
    if (seen != sent || now - sent_at >= timing::kWatchSilence) {
      v1::WatchCheckpointResponse response;
      *response.mutable_checkpoint() = ToProto(info);
      if (!writer->Write(response)) return absl::OkStatus();
      sent = seen;
      sent_at = now;
    }
    if (ended) return absl::OkStatus();
    CKPTD_RETURN_IF_ERROR(node_.CheckNotDraining());
    // At most ten messages a second. The end is sent at once.
    node_.catalog().watchers().WatchEnd(name, Clock::now() + timing::kWatchPeriod);
  }
  return absl::OkStatus();
}

grpc::Status CheckpointServiceImpl::WatchCheckpoint(
    grpc::ServerContext* context, const v1::WatchCheckpointRequest* request,
    grpc::ServerWriter<v1::WatchCheckpointResponse>* writer) {
  const std::string& load = request->load_request_id();
  const absl::Status id = CheckRequestId("watching", request->name(), load);
  if (!id.ok()) return ToGrpc(id);
  const absl::Status found = Find("watching", request->name()).status();
  if (!found.ok()) return ToGrpc(found);
  if (++watchers_ > kMaxWatchers) {
    --watchers_;
    return ToGrpc(MakeError(absl::StatusCode::kResourceExhausted, reason::kTooManyWaiting,
                            fmt::format("watching {}: {} watches are open on this daemon; poll "
                                        "GetCheckpoint instead",
                                        request->name(), kMaxWatchers)));
  }
  Catalog& catalog = node_.catalog();
  if (!load.empty()) catalog.leases().KeepFor(request->name(), load);
  const uint64_t generation = catalog.watchers().Add(request->name());
  const absl::Status status = Watch(context, request->name(), writer);
  catalog.watchers().Left(request->name(), generation, Clock::now());
  const auto info = catalog.Get(request->name());
  const bool loading = info.ok() && info->state == CheckpointState::kLoading;
  if (loading && context->IsCancelled()) catalog.leases().KeepNoMore(request->name(), load);
  --watchers_;
  return ToGrpc(status);
}

grpc::Status CheckpointServiceImpl::GetCheckpoint(grpc::ServerContext*,
                                                  const v1::GetCheckpointRequest* request,
                                                  v1::GetCheckpointResponse* response) {
  const auto info = Find("asking for", request->name());
  if (!info.ok()) return ToGrpc(info.status());
  node_.catalog().watchers().WasPolled(request->name());
  *response->mutable_checkpoint() = ToProto(*info);
  return grpc::Status::OK;
}

grpc::Status CheckpointServiceImpl::ListCheckpoints(grpc::ServerContext*,
                                                    const v1::ListCheckpointsRequest* request,
                                                    v1::ListCheckpointsResponse* response) {
  const std::vector<CheckpointInfo> infos = node_.catalog().List(guest_);
  const auto begin = PositionFrom(request->page_token(), infos.size());
  if (!begin.ok()) return ToGrpc(begin.status());
  constexpr size_t kLargestPage = 500;
  const size_t asked = request->page_size() == 0 ? kLargestPage : request->page_size();
  const size_t end = std::min(infos.size(), *begin + std::min(asked, kLargestPage));
  for (size_t i = *begin; i < end; ++i) *response->add_checkpoints() = ToProto(infos[i]);
  if (end < infos.size()) response->set_next_page_token(std::to_string(end));
  response->set_device_uuid(node_.device());
  response->set_rank(static_cast<int32_t>(node_.options().identity.rank));
  response->set_world_size(static_cast<int32_t>(node_.options().identity.world_size));
  response->set_fd_socket(fd_socket_);
  return grpc::Status::OK;
}

absl::Status CheckpointServiceImpl::CheckKind(const v1::AcquireShardRequest& request) const {
  CKPTD_ASSIGN_OR_RETURN(const CheckpointInfo info, Find("acquiring", request.name()));
  if (Accepts(request, info.kind)) return absl::OkStatus();
  const std::string device = node_.device();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kHandleKind,
                   fmt::format("acquiring {}: it is in {} and handed out as {}, which the client "
                               "does not accept; {}",
                               request.name(),
                               device.empty() ? "host memory" : "the memory of " + device,
                               NameOf(info.kind), WhatToTry(info.kind)),
                   {{"checkpoint", request.name()},
                    {"handle_kind", std::string(NameOf(info.kind))}});
}

void CheckpointServiceImpl::AwaitEnd(const std::string& name) {
  if (node_.catalog().leases().Look(name).ok()) return;
  if (++awaiting_end_ <= kMaxAwaitingEnd) {
    node_.catalog().watchers().WatchEnd(name, Clock::now() + timing::kEndTravels);
  }
  --awaiting_end_;
}

absl::Status CheckpointServiceImpl::Acquire(const grpc::ServerContext& context,
                                            const v1::AcquireShardRequest& request,
                                            v1::AcquireShardResponse* response) {
  CKPTD_RETURN_IF_ERROR(node_.CheckNotDraining());
  CKPTD_ASSIGN_OR_RETURN(const AttachMode mode, FromProto(request.mode()));
  CKPTD_RETURN_IF_ERROR(CheckKind(request));
  AwaitEnd(request.name());
  // A client that has gone would never release the lease.
  if (context.IsCancelled()) return absl::CancelledError("acquiring: the client has gone");
  CKPTD_ASSIGN_OR_RETURN(const LeaseTable::Ticket ticket,
                         node_.leases().Open(request.name(), mode, request.load_request_id()));
  const Shard& shard = *ticket.held.shard;
  response->set_lease(ticket.lease);
  response->set_token(ticket.token);
  *response->mutable_token_lifetime() = ToProto(timing::kTokenLifetime);
  response->set_mode(ToProto(mode));
  response->set_slab_bytes(shard.plan.slab_bytes);
  response->set_tensor_count(shard.plan.tensors.size());
  FillHandle(*ticket.held.memory, mode, node_.device(), fd_socket_, *response);
  size_t next = 0;
  *response->mutable_tensors() = TensorPage(shard, 0, request.page_size(), next);
  if (next != 0) response->set_next_page_token(std::to_string(next));
  return absl::OkStatus();
}

grpc::Status CheckpointServiceImpl::AcquireShard(grpc::ServerContext* context,
                                                 const v1::AcquireShardRequest* request,
                                                 v1::AcquireShardResponse* response) {
  return ToGrpc(Acquire(*context, *request, response));
}

grpc::Status CheckpointServiceImpl::ListShardTensors(grpc::ServerContext*,
                                                     const v1::ListShardTensorsRequest* request,
                                                     v1::ListShardTensorsResponse* response) {
  const auto found = Find("listing the tensors of", request->name());
  if (!found.ok()) return ToGrpc(found.status());
  const auto shard = node_.catalog().leases().Table(request->name());
  if (!shard.ok()) return ToGrpc(shard.status());
  const auto begin = PositionFrom(request->page_token(), TableRows(**shard));
  if (!begin.ok()) return ToGrpc(begin.status());
  size_t next = 0;
  *response->mutable_tensors() = TensorPage(**shard, *begin, request->page_size(), next);
  if (next != 0) response->set_next_page_token(std::to_string(next));
  return grpc::Status::OK;
}

grpc::Status CheckpointServiceImpl::ReleaseShard(grpc::ServerContext*,
                                                 const v1::ReleaseShardRequest* request,
                                                 v1::ReleaseShardResponse*) {
  const std::string& lease = request->lease();
  const std::string name = lease.substr(0, lease.find("/leases/"));
  const absl::Status found = Find("releasing a lease of", name).status();
  if (absl::IsPermissionDenied(found)) return ToGrpc(found);
  return ToGrpc(node_.leases().Release(request->lease()));
}

grpc::Status CheckpointServiceImpl::VerifyCheckpoint(grpc::ServerContext* context,
                                                     const v1::VerifyCheckpointRequest* request,
                                                     v1::VerifyCheckpointResponse* response) {
  const auto found = Find("verifying", request->name());
  if (!found.ok()) return ToGrpc(found.status());
  const auto result = node_.Verify(request->name(), AskerOf(*context, ""));
  if (!result.ok()) return ToGrpc(result.status());
  response->set_tensor_count(result->tensors);
  response->set_bytes(result->bytes);
  for (const std::string& name : result->mismatched) response->add_mismatched(name);
  for (const std::string& file : result->files) response->add_files(TextOfPath(file));
  response->set_rank(static_cast<int32_t>(node_.options().identity.rank));
  return grpc::Status::OK;
}

grpc::Status CheckpointServiceImpl::GetTrainerKey(grpc::ServerContext*,
                                                  const v1::GetTrainerKeyRequest*,
                                                  v1::GetTrainerKeyResponse* response) {
  auto key = node_.TrainerKey(guest_);
  if (!key.ok()) return ToGrpc(key.status());
  response->set_key(*std::move(key));
  return grpc::Status::OK;
}

grpc::ServerUnaryReactor* CheckpointServiceImpl::JoinLoad(grpc::CallbackServerContext*,
                                                          const v1::JoinLoadRequest* request,
                                                          v1::JoinLoadResponse* response) {
  return ckptd::JoinLoad(node_, *request, UserOf(guest_), response);
}

grpc::Status CheckpointServiceImpl::LeaveLoad(grpc::ServerContext*,
                                              const v1::LeaveLoadRequest* request,
                                              v1::LeaveLoadResponse*) {
  const absl::Status outcome = request->has_failure()
                                   ? FailureFrom(request->failure(), request->facts())
                                   : absl::OkStatus();
  node_.participants().Leave(request->participant(), outcome, Clock::now() + timing::kFailureTravels);
  return grpc::Status::OK;
}

}  // namespace ckptd
