#include "server/rpc/group_service.h"

#include <future>
#include <utility>

#include <fmt/format.h>

#include "common/base/at_once.h"
#include "common/base/digest.h"
#include "common/base/heap.h"
#include "common/base/logging.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"
#include "server/rpc/call.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/peer_channel.h"

namespace ckptd {
namespace {

constexpr size_t kRefusalsKept = 4096;  // more than a group has ranks, as a rule

// This member's work while bytes are being placed.
absl::StatusOr<ReadReport> DoPart(Node& node, const ExecuteCall& call) {
  CKPTD_RETURN_IF_ERROR(node.Clear(call.name, call.deadline));
  if (!call.read.empty()) return node.Read(call);
  if (call.scatter.has_value()) CKPTD_RETURN_IF_ERROR(node.ReceiveScatter(call));
  return ReadReport();
}

absl::StatusOr<ExecuteCall> CallOf(const v1::ExecuteRequest& request, Deadline deadline) {
  ExecuteCall call;
  call.epoch = request.epoch();
  call.name = request.name();
  call.deadline = deadline;
  if (request.has_read()) {
    CKPTD_ASSIGN_OR_RETURN(call.read, FromProto(request.read()));
  }
  if (request.has_scatter()) {
    CKPTD_ASSIGN_OR_RETURN(call.scatter, FromProto(request.scatter()));
  }
  return call;
}

// The message has a table of all tensors. It goes before the plan takes memory, not when the call
// ends: gRPC owns it, and nobody reads it again.
absl::StatusOr<PrepareCall> TakePrepare(const v1::PrepareRequest& request) {
  absl::StatusOr<PrepareCall> call;
  {
    v1::PrepareRequest taken;
    taken.Swap(const_cast<v1::PrepareRequest*>(&request));
    call = FromProto(taken);
  }
  ReturnFreeHeap();
  return call;
}

grpc::Status Answer(const absl::StatusOr<ReadReport>& report, v1::ExecuteResponse& response) {
  if (!report.ok()) return ToGrpc(report.status());
  response = ToProto(*report);
  return grpc::Status::OK;
}

}  // namespace

absl::StatusOr<Node*> GroupServiceImpl::Ready() const {
  Node* const node = node_.load();
  if (node != nullptr) return node;
  return MakeError(absl::StatusCode::kUnavailable, reason::kRankMissing,
                   "calling a daemon that is still starting; try again");
}

absl::StatusOr<Coordinator*> GroupServiceImpl::Leader() const {
  CKPTD_ASSIGN_OR_RETURN(Node* const node, Ready());
  if (node->coordinator() != nullptr) return node->coordinator();
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kJoinRefused,
                   fmt::format("calling the leader: rank {} answers at this address and does not "
                               "lead; --rendezvous must name rank 0's peer port",
                               node->options().identity.rank));
}

grpc::Status GroupServiceImpl::Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                                    v1::JoinResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  MemberIdentity identity = IdentityFrom(*request);
  identity.address = ReachableAddress(identity.address, context->peer());
  const auto reply = (*leader)->Join(identity, ResidentsFrom(*request));
  if (!reply.ok()) {
    LogRefusal(*request, reply.status());
    return ToGrpc(reply.status());
  }
  *response = ToProto(*reply);
  return grpc::Status::OK;
}

// Logs a refusal once. A refused member asks again every second until somebody corrects the
// cause.
void GroupServiceImpl::LogRefusal(const v1::JoinRequest& request, const absl::Status& why) {
  const uint64_t said = Xxh3(fmt::format("{} {} {}", request.rank(), MessageOf(why),
                                         request.incarnation()));
  {
    MutexLock lock(mutex_);
    if (refused_.count(said) > 0) return;
    if (refused_.size() >= kRefusalsKept) refused_.clear();
    refused_.insert(said);
  }
  Log(LogLevel::kWarn, "{}", MessageOf(why));
}

grpc::Status GroupServiceImpl::Heartbeat(grpc::ServerContext*,
                                         const v1::HeartbeatRequest* request,
                                         v1::HeartbeatResponse* response) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  // A member answers with its identity, because the leader probes with this call.
  if ((*node)->coordinator() == nullptr) {
    response->set_incarnation((*node)->options().identity.incarnation);
    return grpc::Status::OK;
  }
  const auto reply = (*node)->coordinator()->Heartbeat(FromProto(*request));
  if (!reply.ok()) return ToGrpc(reply.status());
  *response = ToProto(*reply);
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Propose(grpc::ServerContext*, const v1::ProposeRequest* request,
                                       v1::ProposeResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  if (const absl::Status status = (*Ready())->CheckNotDraining(); !status.ok()) {
    return ToGrpc(status);
  }
  auto load = FromProto(*request);
  if (!load.ok()) return ToGrpc(load.status());
  const auto rank = static_cast<uint32_t>(request->rank());
  const auto name = (*leader)->ProposeForMember(rank, *std::move(load));
  if (!name.ok()) return ToGrpc(name.status());
  response->set_name(*name);
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::FindMissing(grpc::ServerContext*,
                                           const v1::FindMissingRequest* request,
                                           v1::FindMissingResponse* response) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  for (const uint32_t rank : (*leader)->FindMissing(request->name())) {
    response->add_ranks(static_cast<int32_t>(rank));
  }
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::GiveBackMemory(grpc::ServerContext*,
                                              const v1::GiveBackMemoryRequest* request,
                                              v1::GiveBackMemoryResponse*) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  (*node)->GiveBack(request->name());
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::CancelLoad(grpc::ServerContext*,
                                          const v1::CancelLoadRequest* request,
                                          v1::CancelLoadResponse*) {
  const auto leader = Leader();
  if (!leader.ok()) return ToGrpc(leader.status());
  return ToGrpc((*leader)->CancelFor(static_cast<uint32_t>(request->rank()), request->name()));
}

grpc::Status GroupServiceImpl::Prepare(grpc::ServerContext* context,
                                       const v1::PrepareRequest* request,
                                       v1::PrepareResponse* response) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  const auto call = TakePrepare(*request);
  if (!call.ok()) return ToGrpc(call.status());
  const auto reply = (*node)->Prepare(*call, DeadlineOf(*context, timing::kLongestPeerCall));
  if (!reply.ok()) return ToGrpc(reply.status());
  *response = ToProto(*reply);
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Execute(grpc::ServerContext* context,
                                       grpc::ServerReader<v1::ExecuteRequest>* reader,
                                       v1::ExecuteResponse* response) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  v1::ExecuteRequest message;
  if (!reader->Read(&message)) return grpc::Status::CANCELLED;
  const auto read = CallOf(message, DeadlineOf(*context, std::chrono::hours(24)));
  if (!read.ok()) return ToGrpc(read.status());
  const ExecuteCall& call = *read;
  auto started = Async("taking part in " + call.name, [&] { return DoPart(**node, call); });
  if (!started.ok()) return ToGrpc(started.status());
  std::future<absl::StatusOr<ReadReport>> work = *std::move(started);
  bool finished = message.finished();
  // The leader sends often, so the end of this rank's part is noticed with its next message.
  const auto ended = [&work] {
    return work.valid() && work.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  absl::StatusOr<ReadReport> report;
  while (!finished && reader->Read(&message)) {
    finished = message.finished();
    if (ended()) {
      report = work.get();
      if (!report.ok()) return ToGrpc(report.status());
    }
    if (message.has_progress()) {
      (*node)->catalog().UpdateProgress(call.name, FromProto(message.progress()));
    }
  }
  if (!finished) {
    // The leader closes its streams, then sends Abort with the reason, which may be another rank.
    // If no Abort comes, the leader itself was lost.
    (*node)->catalog().watchers().WatchEnd(call.name, Clock::now() + timing::kAbortArrives);
    (*node)->LeaderLost(call.name, call.deadline);
  }
  if (work.valid()) report = work.get();
  return finished ? Answer(report, *response) : grpc::Status::CANCELLED;
}

grpc::Status GroupServiceImpl::Commit(grpc::ServerContext* context,
                                      const v1::CommitRequest* request, v1::CommitResponse*) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  return ToGrpc((*node)->Commit(FromProto(*request), DeadlineOf(*context, timing::kLongestPeerCall)));
}

grpc::Status GroupServiceImpl::Abort(grpc::ServerContext*, const v1::AbortRequest* request,
                                     v1::AbortResponse*) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  const Facts facts(request->facts().begin(), request->facts().end());
  (*node)->Abort(request->name(), FromFailure(request->failure(), facts));
  return grpc::Status::OK;
}

grpc::Status GroupServiceImpl::Holds(grpc::ServerContext*, const v1::HoldsRequest* request,
                                     v1::HoldsResponse* response) {
  const auto node = Ready();
  if (!node.ok()) return ToGrpc(node.status());
  response->set_resident((*node)->catalog().leases().Look(request->name()).ok());
  return grpc::Status::OK;
}

}  // namespace ckptd
