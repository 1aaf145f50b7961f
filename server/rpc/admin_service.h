// ckptd.v1.AdminService, on the admin socket. Thread-safe.
#ifndef CKPTD_SERVER_RPC_ADMIN_SERVICE_H_
#define CKPTD_SERVER_RPC_ADMIN_SERVICE_H_

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "ckptd/v1/admin_service.grpc.pb.h"
#include "server/node/node.h"

namespace ckptd {

class AdminServiceImpl final : public v1::AdminService::Service {
 public:
  struct Endpoints {
    std::string workload_socket;
    std::string fd_socket;
    std::string peer_address;
  };
  AdminServiceImpl(Node& node, Endpoints endpoints)
      : node_(node),
        endpoints_(std::move(endpoints)),
        started_(std::chrono::system_clock::now()) {}

  grpc::Status UnloadCheckpoint(grpc::ServerContext* context,
                                const v1::UnloadCheckpointRequest* request,
                                v1::UnloadCheckpointResponse* response) override;
  grpc::Status PinCheckpoint(grpc::ServerContext* context, const v1::PinCheckpointRequest* request,
                             v1::PinCheckpointResponse* response) override;
  grpc::Status ListLeases(grpc::ServerContext* context, const v1::ListLeasesRequest* request,
                          v1::ListLeasesResponse* response) override;
  grpc::Status GetDaemonInfo(grpc::ServerContext* context, const v1::GetDaemonInfoRequest* request,
                             v1::GetDaemonInfoResponse* response) override;
  grpc::Status DrainDaemon(grpc::ServerContext* context, const v1::DrainDaemonRequest* request,
                           v1::DrainDaemonResponse* response) override;
  grpc::Status TrimMemory(grpc::ServerContext* context, const v1::TrimMemoryRequest* request,
                          v1::TrimMemoryResponse* response) override;
  grpc::Status SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                           v1::SetLogLevelResponse* response) override;

 private:
  // Waits for leases to end. Returns how many are left at the deadline, or when the client or
  // this daemon ends.
  absl::StatusOr<size_t> AwaitLeases(const grpc::ServerContext& context, Deadline deadline);

  Node& node_;
  std::atomic<int> awaiting_leases_ = 0;
  const Endpoints endpoints_;
  const std::chrono::system_clock::time_point started_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_ADMIN_SERVICE_H_
