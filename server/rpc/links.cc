#include "server/rpc/links.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "ckptd/v1/group_service.grpc.pb.h"
#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/wire/sendable_text.h"
#include "server/rpc/convert.h"
#include "server/rpc/transfer_sink.h"

namespace ckptd {
namespace {

// The calls in progress to one member. Thread-safe.
class OpenCalls {
 public:
  void Add(grpc::ClientContext& context) {
    MutexLock lock(mutex_);
    if (closed_) context.TryCancel();  // works even before the call has begun
    contexts_.insert(&context);
  }
  void Remove(grpc::ClientContext& context) {
    MutexLock lock(mutex_);
    contexts_.erase(&context);
  }
  void Close(const std::string& why) {
    MutexLock lock(mutex_);
    if (!closed_) why_ = why;
    closed_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
  }
  // The status of a call. A CANCELLED that Close has caused becomes the reason of Close.
  grpc::Status Reworded(const grpc::Status& status) const {
    MutexLock lock(mutex_);
    if (!closed_ || status.error_code() != grpc::StatusCode::CANCELLED) return status;
    return {grpc::StatusCode::CANCELLED, why_};
  }

 private:
  mutable Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_ ABSL_GUARDED_BY(mutex_);
  std::set<grpc::ClientContext*> contexts_ ABSL_GUARDED_BY(mutex_);
};

// The context of one call, listed in `calls` as long as it exists.
class ListedContext {
 public:
  ListedContext(std::shared_ptr<OpenCalls> calls, Deadline deadline) : calls_(std::move(calls)) {
    context_.set_deadline(WallDeadline(deadline));
    calls_->Add(context_);
  }
  ~ListedContext() { calls_->Remove(context_); }
  ListedContext(const ListedContext&) = delete;
  ListedContext& operator=(const ListedContext&) = delete;

  grpc::ClientContext* get() { return &context_; }
  absl::Status Explained(const grpc::Status& status, uint32_t rank, const std::string& doing) {
    return ExplainPeer(calls_->Reworded(status), rank, doing);
  }

 private:
  const std::shared_ptr<OpenCalls> calls_;
  grpc::ClientContext context_;
};

class GrpcExecuteStream final : public ExecuteStream {
 public:
  GrpcExecuteStream(v1::GroupService::Stub& stub, std::shared_ptr<OpenCalls> calls, uint32_t rank,
                    const ExecuteCall& call)
      : rank_(rank),
        epoch_(call.epoch),
        name_(call.name),
        context_(std::move(calls), call.deadline) {
    writer_ = stub.Execute(context_.get(), &response_);
  }
  ~GrpcExecuteStream() override {
    if (ended_) return;
    context_.get()->TryCancel();
    writer_->Finish();
  }

  bool Send(const Progress& progress) override {
    v1::ExecuteRequest message = Message();
    *message.mutable_progress() = ToProto(progress);
    return writer_->Write(message);
  }

  // Sends the first message.
  bool Begin(const ExecuteCall& call) {
    v1::ExecuteRequest message = Message();
    if (!call.read.empty()) *message.mutable_read() = ToProto(call.read);
    if (call.scatter.has_value()) *message.mutable_scatter() = ToProto(*call.scatter);
    return writer_->Write(message);
  }

  absl::StatusOr<ReadReport> Finish() override {
    if (ended_) return Ended();
    v1::ExecuteRequest message = Message();
    message.set_finished(true);
    if (writer_->Write(message)) writer_->WritesDone();
    ended_ = true;
    ended_status_ = context_.Explained(writer_->Finish(), rank_, "transferring " + name_);
    return Ended();
  }

 private:
  absl::StatusOr<ReadReport> Ended() const {
    CKPTD_RETURN_IF_ERROR(ended_status_);
    return FromProto(response_);
  }
  v1::ExecuteRequest Message() const {
    v1::ExecuteRequest message;
    message.set_epoch(epoch_);
    message.set_name(name_);
    return message;
  }

  const uint32_t rank_;
  const uint64_t epoch_;
  const std::string name_;
  ListedContext context_;
  v1::ExecuteResponse response_;
  std::unique_ptr<grpc::ClientWriter<v1::ExecuteRequest>> writer_;
  bool ended_ = false;
  absl::Status ended_status_;
};

class GrpcMemberLink final : public MemberLink {
 public:
  GrpcMemberLink(const MemberIdentity& member, const PeerSecurity& security)
      : member_(member),
        security_(security),
        stub_(v1::GroupService::NewStub(PeerChannel(member.address, security))) {}

  absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, Deadline deadline) override {
    v1::PrepareResponse response;
    CKPTD_RETURN_IF_ERROR(Call(&v1::GroupService::Stub::Prepare, ToProto(call), response, deadline,
                               "preparing " + call.name));
    return FromProto(response);
  }

  absl::StatusOr<std::unique_ptr<ExecuteStream>> Execute(const ExecuteCall& call) override {
    auto stream = std::make_unique<GrpcExecuteStream>(*stub_, calls_, member_.rank, call);
    if (stream->Begin(call)) return stream;
    CKPTD_RETURN_IF_ERROR(stream->Finish().status());
    return ExplainPeer(grpc::Status::CANCELLED, member_.rank, "transferring " + call.name);
  }

  std::unique_ptr<TransferSink> OpenSink(const SinkCall& call) override {
    return std::make_unique<GrpcTransferSink>(member_, security_, call,
                                              GrpcTransferSink::Options());
  }

  absl::Status Commit(const CommitCall& call, Deadline deadline) override {
    v1::CommitResponse response;
    return Call(&v1::GroupService::Stub::Commit, ToProto(call), response, deadline,
                "publishing " + call.name);
  }

  absl::Status Abort(const std::string& name, const absl::Status& why,
                     Deadline deadline) override {
    v1::AbortRequest request;
    request.set_name(name);
    *request.mutable_failure() = ToFailure(why);
    for (const auto& [key, value] : FactsOf(why)) {
      (*request.mutable_facts())[key] = SendableFact(key, value, std::string::npos);
    }
    v1::AbortResponse response;
    // Sent even after Close: a member that was dropped may be alive, and should get the reason.
    grpc::ClientContext context;
    context.set_deadline(WallDeadline(deadline));
    return ExplainPeer(stub_->Abort(&context, request, &response), member_.rank, "aborting " + name);
  }

  absl::Status GiveBack(const std::string& name, Deadline deadline) override {
    v1::GiveBackMemoryRequest request;
    request.set_name(name);
    v1::GiveBackMemoryResponse response;
    return Call(&v1::GroupService::Stub::GiveBackMemory, request, response, deadline,
                "giving back memory of " + name);
  }

  absl::StatusOr<bool> Holds(const std::string& name, Deadline deadline) override {
    v1::HoldsRequest request;
    request.set_name(name);
    v1::HoldsResponse response;
    CKPTD_RETURN_IF_ERROR(Call(&v1::GroupService::Stub::Holds, request, response, deadline,
                               "asking for " + name));
    return response.resident();
  }

  absl::Status Probe(Deadline deadline) override {
    v1::HeartbeatRequest request;
    v1::HeartbeatResponse response;
    CKPTD_RETURN_IF_ERROR(Call(&v1::GroupService::Stub::Heartbeat, request, response, deadline,
                               "probing rank " + std::to_string(member_.rank)));
    if (response.incarnation() == member_.incarnation) return absl::OkStatus();
    return MakeError(absl::StatusCode::kUnavailable, reason::kRankLost,
                     fmt::format("probing rank {}: another process answers", member_.rank));
  }

  void Close(const std::string& why) override { calls_->Close(why); }

 private:
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response& response, Deadline deadline,
                    const std::string& doing) {
    ListedContext context(calls_, deadline);
    return context.Explained((stub_.get()->*method)(context.get(), request, &response),
                             member_.rank, doing);
  }

  const MemberIdentity member_;
  const PeerSecurity security_;
  const std::shared_ptr<OpenCalls> calls_ = std::make_shared<OpenCalls>();
  std::unique_ptr<v1::GroupService::Stub> stub_;
};

class GrpcLeaderLink final : public LeaderLink {
 public:
  GrpcLeaderLink(const std::string& address, const PeerSecurity& security)
      : address_(address), security_(security), stub_(Connect()) {}

  absl::StatusOr<JoinReply> Join(const MemberIdentity& identity,
                                 const std::vector<ResidentCheckpoint>& residents,
                                 Deadline deadline) override {
    v1::JoinResponse response;
    const absl::Status status = Call(&v1::GroupService::Stub::Join, ToProto(identity, residents),
                                     response, deadline, "joining the group at " + address_);
    if (ReasonOf(status) == reason::kRankLost) Reconnect();
    CKPTD_RETURN_IF_ERROR(status);
    return FromProto(response);
  }

  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatCall& call,
                                           Deadline deadline) override {
    v1::HeartbeatResponse response;
    CKPTD_RETURN_IF_ERROR(Call(&v1::GroupService::Stub::Heartbeat, ToProto(call), response,
                               deadline, "heartbeat to " + address_));
    return FromProto(response);
  }

  absl::StatusOr<std::string> Propose(uint32_t rank, const LoadRequest& request,
                                      Deadline deadline) override {
    v1::ProposeResponse response;
    CKPTD_RETURN_IF_ERROR(Call(&v1::GroupService::Stub::Propose,
                               ToProto(rank, request), response, deadline,
                               "proposing the load of " + request.source));
    return response.name();
  }

  absl::StatusOr<std::set<uint32_t>> FindMissing(const std::string& name,
                                                 Deadline deadline) override {
    v1::FindMissingRequest request;
    request.set_name(name);
    v1::FindMissingResponse response;
    CKPTD_RETURN_IF_ERROR(Call(&v1::GroupService::Stub::FindMissing, request, response, deadline,
                               "asking who holds " + name));
    std::set<uint32_t> ranks;
    for (const int32_t rank : response.ranks()) ranks.insert(static_cast<uint32_t>(rank));
    return ranks;
  }

  absl::Status CancelLoad(uint32_t rank, const std::string& name, Deadline deadline) override {
    v1::CancelLoadRequest request;
    request.set_rank(static_cast<int32_t>(rank));
    request.set_name(name);
    v1::CancelLoadResponse response;
    return Call(&v1::GroupService::Stub::CancelLoad, request, response, deadline,
                "cancelling the load of " + name);
  }

 private:
  using Stub = v1::GroupService::Stub;

  std::shared_ptr<Stub> Connect() const {
    return v1::GroupService::NewStub(PeerChannel(address_, security_));
  }
  // A channel looks a name up again only after a pause, which grows to minutes. A new one does so at
  // once: the leader's name may get an address late, and another one when its host is replaced.
  void Reconnect() {
    std::shared_ptr<Stub> fresh = Connect();
    MutexLock lock(mutex_);
    stub_.swap(fresh);
  }
  std::shared_ptr<Stub> CurrentStub() const {
    MutexLock lock(mutex_);
    return stub_;
  }

  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response& response, Deadline deadline,
                    const std::string& doing) {
    grpc::ClientContext context;
    context.set_deadline(WallDeadline(deadline));
    return ExplainPeer((CurrentStub().get()->*method)(&context, request, &response), 0, doing);
  }

  const std::string address_;
  const PeerSecurity security_;
  mutable Mutex mutex_;
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<MemberLink> ConnectToMember(const MemberIdentity& member,
                                            const PeerSecurity& security) {
  return std::make_shared<GrpcMemberLink>(member, security);
}

std::shared_ptr<LeaderLink> ConnectToLeader(const std::string& address,
                                            const PeerSecurity& security) {
  return std::make_shared<GrpcLeaderLink>(address, security);
}

}  // namespace ckptd
