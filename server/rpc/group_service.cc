#include "server/rpc/group_service.h"

#include <future>
#include <utility>

#include <fmt/format.h>

#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_status.h"

namespace ckptd {
namespace {

constexpr std::chrono::minutes kLongestCall{10};

}  // namespace

absl::StatusOr<Coordinator*> GroupServiceImpl::Leader() {
  if (node_.coordinator() != nullptr) return node_.coordinator();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kJoinRefused,
                   fmt::format("calling the leader: rank {} answers at this address and does not "
                               "lead; --rendezvous must name rank 0's peer port",
                               node_.options().identity.rank));
}

grpc::Status GroupServiceImpl::Join(grpc::ServerContext*, const v1::JoinRequest* request,
                                    v1::JoinResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  const auto reply = (*leader)->Join(IdentityFrom(*request), ResidentsFrom(*request));
  if (!reply.ok()) {
    Log(LogLevel::kWarn, "{}", MessageOf(reply.status()));
    return ToGrpc(reply.status());
  }
  response->set_epoch(reply->epoch);
  response->set_incarnation(reply->incarnation);
  response->set_secret(reply->secret);
  *response->mutable_heartbeat_interval() = ToProto(reply->heartbeat_interval);
  *response->mutable_heartbeat_timeout() = ToProto(reply->heartbeat_timeout);
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Heartbeat(grpc::ServerContext*,
                                         const v1::HeartbeatRequest* request,
                                         v1::HeartbeatResponse* response) {
  // A member answers its own heartbeat: the leader probes with it.
  if (node_.coordinator() == nullptr) {
    response->set_incarnation(node_.options().identity.incarnation);
    return grpc::Status::OK;
  }
  const auto reply = node_.coordinator()->Heartbeat(static_cast<uint32_t>(request->rank()),
                                                    request->incarnation());
  if (!reply.ok()) return ToGrpc(reply.status());
  response->set_epoch(reply->epoch);
  response->set_incarnation(reply->incarnation);
  for (const uint32_t rank : reply->missing_ranks) {
    response->add_missing_ranks(static_cast<int32_t>(rank));
  }
  for (const auto& [name, progress] : reply->loads) {
    auto* load = response->add_loads();
    load->set_name(name);
    *load->mutable_progress() = ToProto(progress);
  }
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Propose(grpc::ServerContext*, const v1::ProposeRequest* request,
                                       v1::ProposeResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  if (const absl::Status status = node_.CheckNotDraining(); !status.ok()) return ToGrpc(status);
  const auto load = FromProto(*request);
  if (!load.ok()) return ToGrpc(load.status());
  const auto name = (*leader)->Propose(static_cast<uint32_t>(request->rank()), *load);
  if (!name.ok()) return ToGrpc(name.status());
  response->set_name(*name);
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Prepare(grpc::ServerContext* context,
                                       const v1::PrepareRequest* request,
                                       v1::PrepareResponse* response) {
  const auto call = FromProto(*request);
  if (!call.ok()) return ToGrpc(call.status());
  const auto reply = node_.Prepare(*call, DeadlineOf(*context, kLongestCall));
  if (!reply.ok()) return ToGrpc(reply.status());
  *response = ToProto(*reply);
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Execute(grpc::ServerContext* context,
                                       grpc::ServerReader<v1::ExecuteRequest>* reader,
                                       v1::ExecuteResponse*) {
  v1::ExecuteRequest message;
  if (!reader->Read(&message)) return grpc::Status::CANCELLED;
  const std::string name = message.name();
  const Deadline deadline = DeadlineOf(*context, std::chrono::hours(24));
  auto cleared =
      std::async(std::launch::async, [this, name, deadline] { return node_.Clear(name, deadline); });
  bool finished = message.finished();
  while (!finished && reader->Read(&message)) {
    finished = message.finished();
    if (message.has_progress()) {
      node_.catalog().UpdateProgress(name, FromProto(message.progress()));
    }
  }
  const absl::Status status = cleared.get();
  if (finished) return ToGrpc(status);
  // The leader aborts with its reason where it can; a broken stream is one, too.
  node_.LeaderLost(name);
  return grpc::Status::CANCELLED;
}

grpc::Status GroupServiceImpl::Commit(grpc::ServerContext* context,
                                      const v1::CommitRequest* request, v1::CommitResponse*) {
  return ToGrpc(node_.Commit(FromProto(*request), DeadlineOf(*context, kLongestCall)));
}

grpc::Status GroupServiceImpl::Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                                     v1::AbortResponse*) {
  const Facts facts(request->facts().begin(), request->facts().end());
  node_.Abort(request->name(), FromFailure(request->failure(), facts));
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::PutValue(grpc::ServerContext*, const v1::PutValueRequest* request,
                                        v1::PutValueResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  auto value = node_.key_values().Put(request->key(), request->value());
  if (!value.ok()) return ToGrpc(value.status());
  response->set_value(*std::move(value));
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::GetValue(grpc::ServerContext* context,
                                        const v1::GetValueRequest* request,
                                        v1::GetValueResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  const auto longest =
      std::min<std::chrono::nanoseconds>(FromProto(request->timeout()), std::chrono::minutes(10));
  auto value = node_.key_values().Get(request->key(), DeadlineOf(*context, longest));
  if (!value.ok()) return ToGrpc(value.status());
  response->set_value(*std::move(value));
  return grpc::Status::OK;
}

}  // namespace ckptd
