// One running daemon. Builds the parts, chooses the backends (only this does), and ends
// everything in order. The main thread starts and ends it. The other functions are thread-safe.
#ifndef CKPTD_SERVER_DAEMON_DAEMON_H_
#define CKPTD_SERVER_DAEMON_DAEMON_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/file_lock.h"
#include "common/source/access.h"
#include "server/comm/host/host_peer_memory.h"
#include "server/comm/host/peer_socket.h"
#include "server/daemon/config.h"
#include "server/daemon/health_port.h"
#include "server/daemon/keeping.h"
#include "server/daemon/memory_tier.h"
#include "server/daemon/metrics_service.h"
#include "server/daemon/network.h"
#include "server/daemon/run_directory.h"
#include "server/node/node.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/checkpoint_service.h"
#include "server/rpc/fd_server.h"
#include "server/rpc/group_service.h"
#include "server/rpc/grpc_server.h"
#include "server/rpc/health_service.h"
#include "server/rpc/peer_channel.h"
#include "server/rpc/transfer_service.h"

namespace ckptd {

class Daemon {
 public:
  // Starts to serve. The group may still be incomplete. Errors: CONFIG_INVALID, NO_MEMORY, and
  // those of the parts.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const Config& config);
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // As MemoryBackend::Health.
  absl::Status Health() const { return memory_.backend->Health(); }
  // Unmaps memory that other daemons of this host have given back. Called now and then.
  void DropReleased() { node_->DropReleased(); }
  // While clients have leases or loads, touches the rank's lock file: `launch --linger` looks there.
  void ShowUse() const;
  // Waits for the group, loads what the settings name, and reports when the daemon is ready
  // (--ready-when), through --ready-fd and its health. Returns after that, or when `stop` returns
  // true.
  void AnnounceReady(const std::function<bool()>& stop);

 private:
  explicit Daemon(const Config& config);
  absl::Status StartPeerServer();
  // The host under which the others reach this daemon; kUnknownHost while it cannot be known.
  std::string OwnHost(const HostPort& rendezvous) const;
  // Once this succeeds, this daemon owns the rank's sockets.
  absl::Status LockRank();
  absl::Status StartClientServers();
  absl::Status StartKeeping();
  absl::Status StartMemory();
  // What a guest calls.
  GrpcServer::Services ForGuest(const Caller& guest);
  // The answer of grpc.health.v1.
  ServingStatus HealthNow(const std::string& service) const;
  Node::Options NodeOptions();
  // Writes `state` to --ready-fd.
  void WriteReadyFd(char state) const;
  absl::Status LoadFirst(const std::function<bool()>& stop);
  void SetSecret(const std::string& secret);

  const Config config_;
  const SocketPaths paths_;
  const std::string host_;  // identity of this host
  PeerSecurity security_;
  std::string peer_address_;
  AccessPolicy policy_;
  const std::shared_ptr<SourceRules> rules_ = std::make_shared<SourceRules>();
  FileLock rank_lock_;  // released after all sockets have closed
  MemoryTier memory_;
  std::unique_ptr<HostPeerMemory> peer_memory_;
  std::unique_ptr<PeerSocket> peer_socket_;
  std::unique_ptr<Keeping> keeping_;  // null: nothing outlives this process
  std::unique_ptr<MetricsRecorder> recorder_;  // null: no --metrics
  std::unique_ptr<Node> node_;
  std::unique_ptr<GroupServiceImpl> group_service_;
  std::unique_ptr<TransferServiceImpl> transfer_service_;
  std::unique_ptr<CheckpointServiceImpl> checkpoint_service_;
  std::unique_ptr<AdminServiceImpl> admin_service_;
  std::unique_ptr<HealthServiceImpl> health_service_;
  std::atomic<bool> awaits_load_ = false;  // it is ready when a load is done that is not
  std::unique_ptr<FdServer> fd_server_;
  std::unique_ptr<GrpcServer> peer_server_;
  std::unique_ptr<GrpcServer> workload_server_;
  std::unique_ptr<GrpcServer> admin_server_;
  std::unique_ptr<MetricsPort> metrics_port_;
  std::unique_ptr<GrpcServer> health_server_;  // null: only the Unix sockets serve health
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_DAEMON_H_
