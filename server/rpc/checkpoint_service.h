// ckptd.v1.CheckpointService, for the clients of one user: validates, calls the node, converts.
// Thread-safe.
#ifndef CKPTD_SERVER_RPC_CHECKPOINT_SERVICE_H_
#define CKPTD_SERVER_RPC_CHECKPOINT_SERVICE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ckptd/v1/checkpoint_service.grpc.pb.h"
#include "server/node/node.h"
#include "server/protocol/access_policy.h"
#include "server/rpc/inspected_index.h"

namespace ckptd {

class CheckpointServiceImpl final
    : public v1::CheckpointService::WithCallbackMethod_JoinLoad<v1::CheckpointService::Service> {
 public:
  // Clients are told the path `fd_socket`. `node` must outlive the service. `guest`: who calls;
  // unset: clients whom the daemon trusts.
  CheckpointServiceImpl(Node& node, std::string fd_socket, std::optional<Caller> guest = {})
      : node_(node), fd_socket_(std::move(fd_socket)), guest_(std::move(guest)) {}

  grpc::Status InspectCheckpoint(grpc::ServerContext* context,
                                 const v1::InspectCheckpointRequest* request,
                                 v1::InspectCheckpointResponse* response) override;
  grpc::Status PlanLoad(grpc::ServerContext* context, const v1::PlanLoadRequest* request,
                        v1::PlanLoadResponse* response) override;
  grpc::Status LoadCheckpoint(grpc::ServerContext* context,
                              const v1::LoadCheckpointRequest* request,
                              v1::LoadCheckpointResponse* response) override;
  grpc::Status WatchCheckpoint(grpc::ServerContext* context,
                               const v1::WatchCheckpointRequest* request,
                               grpc::ServerWriter<v1::WatchCheckpointResponse>* writer) override;
  grpc::Status GetCheckpoint(grpc::ServerContext* context, const v1::GetCheckpointRequest* request,
                             v1::GetCheckpointResponse* response) override;
  grpc::Status ListCheckpoints(grpc::ServerContext* context,
                               const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;
  grpc::Status AcquireShard(grpc::ServerContext* context, const v1::AcquireShardRequest* request,
                            v1::AcquireShardResponse* response) override;
  grpc::Status ListShardTensors(grpc::ServerContext* context,
                                const v1::ListShardTensorsRequest* request,
                                v1::ListShardTensorsResponse* response) override;
  grpc::Status ReleaseShard(grpc::ServerContext* context, const v1::ReleaseShardRequest* request,
                            v1::ReleaseShardResponse* response) override;
  grpc::Status VerifyCheckpoint(grpc::ServerContext* context,
                                const v1::VerifyCheckpointRequest* request,
                                v1::VerifyCheckpointResponse* response) override;
  grpc::Status GetTrainerKey(grpc::ServerContext* context,
                             const v1::GetTrainerKeyRequest* request,
                             v1::GetTrainerKeyResponse* response) override;
  grpc::ServerUnaryReactor* JoinLoad(grpc::CallbackServerContext* context,
                                     const v1::JoinLoadRequest* request,
                                     v1::JoinLoadResponse* response) override;
  grpc::Status LeaveLoad(grpc::ServerContext* context, const v1::LeaveLoadRequest* request,
                         v1::LeaveLoadResponse* response) override;

 private:
  absl::Status Watch(grpc::ServerContext* context, const std::string& name,
                     grpc::ServerWriter<v1::WatchCheckpointResponse>* writer);
  grpc::Status PlanDevices(const grpc::ServerContext& context, const v1::PlanLoadRequest& request,
                           v1::PlanLoadResponse& response);
  absl::Status Acquire(const grpc::ServerContext& context, const v1::AcquireShardRequest& request,
                       v1::AcquireShardResponse* response);
  // Waits briefly for a load that may be ending, unless many calls do.
  void AwaitEnd(const std::string& name);
  absl::Status CheckKind(const v1::AcquireShardRequest& request) const;
  absl::Status Inspect(const v1::InspectCheckpointRequest& request, const CallContext& asker,
                       v1::InspectCheckpointResponse* response);
  // The caller, and whether it has gone: then nobody needs the answer.
  CallContext AskerOf(const grpc::ServerContext& context, const std::string& job_key) const;
  // The checkpoint, if these clients may see and use it. Errors: CHECKPOINT_NOT_FOUND,
  // CALLER_NOT_ALLOWED.
  absl::StatusOr<CheckpointInfo> Find(std::string_view doing, const std::string& name) const;

  Node& node_;
  const std::string fd_socket_;
  const std::optional<Caller> guest_;
  std::atomic<int> watchers_ = 0;
  std::atomic<int> awaiting_end_ = 0;
  InspectedIndex inspected_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_CHECKPOINT_SERVICE_H_
