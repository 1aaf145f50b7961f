// One daemon without its sockets: what the RPC services call. Owns the catalog, the leases and
// the workers. Leads the group (rank 0) or follows it. Daemon owns it. Thread-safe.
#ifndef CKPTD_SERVER_NODE_NODE_H_
#define CKPTD_SERVER_NODE_NODE_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/source/open.h"
#include "server/catalog/catalog.h"
#include "server/catalog/lease_table.h"
#include "server/group/follower.h"
#include "server/group/local_participants.h"
#include "server/load/coordinator.h"
#include "server/load/member_reading.h"
#include "server/load/rank_load.h"
#include "server/load/source_checker.h"
#include "server/load/storage_stalls.h"
#include "server/load/worker.h"
#include "server/memory/ready_memory.h"
#include "server/node/dry_run.h"
#include "server/node/query_queue.h"
#include "server/node/verify_shard.h"

namespace ckptd {

class Node {
 public:
  struct Options {
    MemberIdentity identity;
    std::string memory_endpoint;
    ReadingOptions reading;
    ReaderPolicy reader = ReaderPolicy::kRank0;  // the leader's setting counts
    std::chrono::nanoseconds heartbeat_interval = std::chrono::seconds(1);
    std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(5);
    // Makes the link to another rank, for the leader to call members and for a reader to send
    // bytes. `leader`: on members, the link to the leader.
    Membership::LinkFactory connect;
    std::shared_ptr<LeaderLink> leader;
    // Called with the group's secret whenever it changes (members only).
    std::function<void(const std::string&)> on_secret;
    std::map<std::string, std::string> config;  // effective settings, for info
    std::string tier_reason;                    // why shards are in this memory, for info
    // Makes communicators with other GPUs. Null: none, and `no_comms` is the reason.
    GroupComms* comms = nullptr;
    std::string no_comms;
    bool keep_comm = true;  // keep the communicator between loads
    // Host memory for pristine copies of shards that clients take over. Null: none.
    MemoryBackend* host_tier = nullptr;
    // The memory that `backend` and the host tier keep ready. Not null.
    std::vector<ReadyMemory*> ready;
    // Holds what is to outlive this process, and has what an earlier one left. Null: nothing.
    ShardKeeper* keeper = nullptr;
    // They outlive the node. No nulls; load observers are told on rank 0 alone.
    std::vector<LoadObserver*> load_observers = {};
    DaemonObserver* observer = nullptr;  // null: none
    // Unmaps memory that other daemons have given back. Called on the load worker.
    std::function<void()> drop_released = [] {};
  };
  // The seams must outlive the node.
  Node(MemoryBackend& backend, PeerMemory& peer_memory, Options options);
  ~Node();

  // --- clients ---
  struct LoadReply {
    CheckpointInfo info;
    bool resident = false;
    std::vector<std::string> differs;
  };
  // `hold`: the client will acquire the shard, so it is kept from eviction for a while.
  absl::StatusOr<LoadReply> Load(LoadRequest request, const std::string& request_id,
                                 bool hold = true);
  // Errors: also those of QueryQueue::Ask.
  // `view`: as in LoadRequest.
  absl::StatusOr<OpenedCheckpoint> Inspect(const std::string& source, const CallContext& asker,
                                           const std::string& view = "");
  // As PlanDry.
  absl::StatusOr<GroupPlan> Plan(const LoadRequest& request, const CallContext& asker);
  absl::StatusOr<DeviceMap> Plan(const DeviceMapRequest& request, const CallContext& asker);
  // As VerifyShard.
  absl::StatusOr<Verification> Verify(const std::string& name, const CallContext& asker);
  struct Unloaded {
    uint64_t freed_bytes = 0;
    bool cancelled = false;  // it was LOADING, and has failed on every rank
  };
  // As Catalog::Unload. The host tier drops its copy, too. With `force`, a checkpoint that is
  // LOADING is cancelled. Errors then: DEADLINE if the load has not ended within seconds,
  // RANK_LOST if the leader cannot be reached.
  absl::StatusOr<Unloaded> Unload(const std::string& name, bool force, bool idle = false);
  // The key with which trainers authenticate messages to each other; see trainer_key.h. Errors:
  // RANK_MISSING on a member that has not joined.
  absl::StatusOr<std::string> TrainerKey(const std::optional<Caller>& guest = std::nullopt) const;
  Catalog& catalog() { return catalog_; }
  LeaseTable& leases() { return leases_; }
  LocalParticipants& participants() { return participants_; }

  // --- operators ---
  void Drain();
  // Gives memory that no checkpoint needs back to the system, also the host tier's. Returns its
  // bytes.
  uint64_t Trim();
  // Unmaps memory that other daemons have given back, after the loads in progress. Does not
  // block.
  void DropReleased();
  absl::Status CheckNotDraining() const;
  // Whether a client has a lease, or waits for a load.
  bool InUse() const;
  struct Info {
    MemberIdentity identity;
    uint64_t epoch = 0;
    std::string state;   // JOINING, READY, DRAINING
    std::string detail;
    MemoryUsage memory;
    std::string arena_why;
    uint64_t host_tier_budget = 0;
    uint64_t host_tier_used = 0;
    std::string tier;
    std::string tier_reason;
    std::string device;                // UUID of the GPU; empty: host memory
    KeeperState keeper;
    std::vector<MemberState> members;  // on the leader only
  };
  Info GetInfo() const;
  std::string device() const { return backend_.device(); }
  const Options& options() const { return options_; }
  // Waits until the group is complete. False at the deadline.
  bool WaitReady(Deadline deadline) const;

  // --- peers ---
  // Null on members.
  Coordinator* coordinator() { return coordinator_.get(); }
  // Shown to other ranks' memory sockets, and sent with bytes to other ranks. Empty on a member
  // that has not joined.
  std::string group_secret() const;
  // Another rank is about to send bytes of a load. Thread-safe, does not block. Errors:
  // TOKEN_INVALID, EPOCH_CHANGED, CHECKPOINT_NOT_FOUND.
  absl::StatusOr<std::shared_ptr<PreparedLoad>> Receive(const SinkCall& call);
  // These run on the load worker. A call that cannot start by the deadline fails.
  absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, Deadline deadline);
  absl::Status Clear(const std::string& name, Deadline deadline);
  // Reads what the leader asks this rank to read. Errors: those of reading, and of a source that
  // differs from the leader's.
  absl::StatusOr<ReadReport> Read(const ExecuteCall& call);
  // Receives what a communicator carries to this rank, which reads nothing.
  absl::Status ReceiveScatter(const ExecuteCall& call);
  absl::Status Commit(const CommitCall& call, Deadline deadline);
  void GiveBack(const std::string& name) { rank_side_.GiveBack(name); }
  void Abort(const std::string& name, const absl::Status& why) { rank_side_.Abort(name, why); }
  // The leader's stream of a load broke during a transfer. `deadline`: the load's.
  void LeaderLost(const std::string& name, Deadline deadline);

  // Refuses new calls, ends watches, aborts loads.
  void Stop();

 private:
  absl::StatusOr<std::string> Propose(IdentifiedRequest asked);
  // The checkpoint that answers `request`, and whether it was already there (on all ranks, if it
  // is for all).
  struct Found {
    std::string name;
    bool resident = false;
    std::vector<std::string> differs = {};
  };
  absl::StatusOr<Found> FindOrLoad(const IdentifiedRequest& asked);
  // In rule form: fills the ranks that do not hold their shard of the match.
  absl::StatusOr<Found> FillMissing(const Catalog::Match& match, const LoadRequest& request);
  // The resident checkpoint that answers the request, if its files are unchanged.
  absl::StatusOr<std::optional<Catalog::Match>> FindResident(const IdentifiedRequest& asked);
  absl::Status ClaimRequestId(const std::string& request_id, const IdentifiedRequest& asked,
                              std::string& known_name);
  // The group hears of this rank's participants with the next tick or heartbeat, which comes now.
  void TellGroupNow();
  absl::Status CheckGroupEpoch(uint64_t epoch);
  // Returns whether this has ended the load. The load may have become ACTIVE before.
  absl::StatusOr<bool> CancelLoad(const std::string& name);
  MemberReading PartsOfReading();
  // Ends this rank's part of a load. After an error, tears its communicator down.
  absl::StatusOr<ReadReport> EndPart(absl::StatusOr<ReadReport> report);

  // How a source may be read for the caller. Errors: those of StorageStalls::Admit.
  absl::StatusOr<SourceAccess> AccessFor(const CallContext& asker, const std::string& doing,
                                         const std::string& source) {
    return stalls_.Admit(doing, source, {options_.reading.rules, asker.guest, asker.job});
  }

  const Options options_;
  MemoryBackend& backend_;
  PeerMemory& peer_memory_;
  CommunicatorCache comms_;
  Catalog catalog_;
  LeaseTable leases_;
  HostTier host_tier_;
  RankLoad rank_side_;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> dropping_ = false;
  ReadProgressPublisher own_reading_;
  LocalParticipants participants_;
  Mutex requests_mutex_;
  struct Remembered {
    uint64_t digest = 0;
    std::string name;
    uint64_t order = 0;
  };
  std::map<std::string, Remembered> requests_ ABSL_GUARDED_BY(requests_mutex_);
  uint64_t request_order_ ABSL_GUARDED_BY(requests_mutex_) = 0;
  SourceChecker lookups_;
  StorageStalls stalls_;
  // Destroyed before the objects that their tasks use.
  QueryQueue queries_;
  Worker load_worker_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_NODE_H_
