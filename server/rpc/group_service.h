// ckptd.v1.GroupService, on the peer port. Thread-safe.
#ifndef CKPTD_SERVER_RPC_GROUP_SERVICE_H_
#define CKPTD_SERVER_RPC_GROUP_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <set>

#include "ckptd/v1/group_service.grpc.pb.h"
#include "common/base/mutex.h"
#include "server/node/node.h"

namespace ckptd {

class GroupServiceImpl final : public v1::GroupService::Service {
 public:
  // Before this, every call is answered UNAVAILABLE. `node` must outlive the service's server.
  void SetNode(Node& node) { node_.store(&node); }

  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                    v1::JoinResponse* response) override;
  grpc::Status Heartbeat(grpc::ServerContext* context, const v1::HeartbeatRequest* request,
                         v1::HeartbeatResponse* response) override;
  grpc::Status Propose(grpc::ServerContext* context, const v1::ProposeRequest* request,
                       v1::ProposeResponse* response) override;
  grpc::Status FindMissing(grpc::ServerContext* context, const v1::FindMissingRequest* request,
                           v1::FindMissingResponse* response) override;
  grpc::Status GiveBackMemory(grpc::ServerContext* context,
                              const v1::GiveBackMemoryRequest* request,
                              v1::GiveBackMemoryResponse* response) override;
  grpc::Status CancelLoad(grpc::ServerContext* context, const v1::CancelLoadRequest* request,
                          v1::CancelLoadResponse* response) override;
  grpc::Status Prepare(grpc::ServerContext* context, const v1::PrepareRequest* request,
                       v1::PrepareResponse* response) override;
  grpc::Status Execute(grpc::ServerContext* context,
                       grpc::ServerReader<v1::ExecuteRequest>* reader,
                       v1::ExecuteResponse* response) override;
  grpc::Status Commit(grpc::ServerContext* context, const v1::CommitRequest* request,
                      v1::CommitResponse* response) override;
  grpc::Status Abort(grpc::ServerContext* context, const v1::AbortRequest* request,
                     v1::AbortResponse* response) override;
  grpc::Status Holds(grpc::ServerContext* context, const v1::HoldsRequest* request,
                     v1::HoldsResponse* response) override;

 private:
  absl::StatusOr<Node*> Ready() const;
  // An error if this daemon is not the leader.
  absl::StatusOr<Coordinator*> Leader() const;

  // Logs a refused join: once per process and reason, however often it asks again.
  void LogRefusal(const v1::JoinRequest& request, const absl::Status& why);

  std::atomic<Node*> node_ = nullptr;
  Mutex mutex_;
  std::set<uint64_t> refused_ ABSL_GUARDED_BY(mutex_);  // digests of logged refusals
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_GROUP_SERVICE_H_
