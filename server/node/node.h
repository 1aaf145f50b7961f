// One daemon without its sockets: what the RPC services call. Owns the catalog,
// the leases, the workers, and either leads the group (rank 0) or follows it.
// Thread-safe.
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
#include "server/load/worker.h"
#include "server/memory/ready_memory.h"
#include "server/node/dry_run.h"
#include "server/node/query_queue.h"

namespace ckptd {

class Node {
 public:
  struct Options {
    MemberIdentity identity;
    std::string memory_endpoint;
    ReadingOptions reading;
    ReaderPolicy reader = ReaderPolicy::kRank0;  // the leader's decides
    std::chrono::nanoseconds heartbeat_interval = std::chrono::seconds(1);
    std::chrono::nanoseconds heartbeat_timeout = std::chrono::seconds(5);
    // Makes the link to another rank: the leader's to its members, a reader's to whom
    // it sends bytes. Members: the link to the leader.
    Membership::LinkFactory connect;
    std::shared_ptr<LeaderLink> leader;
    // Told the group's secret whenever it changes (members only).
    std::function<void(const std::string&)> on_secret;
    // Called when nothing new is taken from now on.
    std::function<void()> on_drain = [] {};
    std::map<std::string, std::string> config;  // effective, for info
    std::string tier_reason;                    // why shards live where they do, for info
    // Makes communicators with other GPUs; null: none, because of `no_comms`.
    GroupComms* comms = nullptr;
    std::string no_comms;
    bool keep_comm = true;  // between loads
    // Host memory for pristine copies of what clients take over; null: none.
    MemoryBackend* host_tier = nullptr;
    // What `backend` keeps ready, and the host tier; no nulls.
    std::vector<ReadyMemory*> ready;
    // Lets go of memory of other daemons that they have given back. Called on the load worker.
    std::function<void()> drop_released = [] {};
  };
  // Seams outlive the node.
  Node(MemoryBackend& backend, PeerMemory& peer_memory, Options options);
  ~Node();

  // --- clients ---
  struct LoadReply {
    CheckpointInfo info;
    bool resident = false;
    std::vector<std::string> differs;
  };
  // `hold`: whether the client will acquire it, and it is kept from eviction for that.
  absl::StatusOr<LoadReply> Load(LoadRequest request, const std::string& request_id,
                                 bool hold = true);
  // Errors of Questions, too.
  absl::StatusOr<OpenedCheckpoint> Inspect(const std::string& source, const CallContext& asker);
  // As PlanDry.
  absl::StatusOr<GroupPlan> Plan(const LoadRequest& request, const CallContext& asker);
  absl::StatusOr<DeviceMap> Plan(const DeviceMapRequest& request, const CallContext& asker);
  struct Verification {
    uint64_t tensors = 0;
    uint64_t bytes = 0;
    std::vector<std::string> mismatched;
    std::vector<std::string> files;  // of each, where it was read from; empty: from none
  };
  absl::StatusOr<Verification> Verify(const std::string& name, const CallContext& asker);
  struct Unloaded {
    uint64_t freed_bytes = 0;
    bool cancelled = false;  // it was LOADING, and has failed on every rank
  };
  // As Catalog::Unload; the host tier gives its copy up, too. With `force`, one that is LOADING
  // is cancelled instead: DEADLINE when that has not ended it within seconds, and RANK_LOST
  // where the leader cannot be told.
  absl::StatusOr<Unloaded> Unload(const std::string& name, bool force, bool idle = false);
  // What trainers authenticate their own words to each other with; see trainer_key.h. Errors:
  // RANK_MISSING on a member that has not joined.
  absl::StatusOr<std::string> TrainerKey() const;
  Catalog& catalog() { return catalog_; }
  LeaseTable& leases() { return leases_; }
  LocalParticipants& participants() { return participants_; }

  // --- operators ---
  void Drain();
  // Gives memory that no checkpoint needs back to the system: its bytes, the host tier's too.
  uint64_t Trim();
  // Lets go, behind the loads that run, of memory that other daemons have given back. Does not
  // block.
  void DropReleased();
  absl::Status CheckNotDraining() const;
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
    std::string device;  // UUID of the GPU; empty: host memory
    std::vector<MemberState> members;  // leader only
  };
  Info GetInfo() const;
  std::string device() const { return backend_.device(); }
  const Options& options() const { return options_; }
  // Waits until the group is complete. False at the deadline.
  bool WaitReady(Deadline deadline) const;

  // --- peers ---
  // Null on members, which lead nothing.
  Coordinator* coordinator() { return coordinator_.get(); }
  // Shown to other ranks' memory sockets and with bytes that are sent to them;
  // empty on a member that has not joined.
  std::string group_secret() const;
  // Another rank is about to send bytes of a load. Thread-safe, does not block.
  // Errors: TOKEN_INVALID, EPOCH_CHANGED, CHECKPOINT_NOT_FOUND.
  absl::StatusOr<std::shared_ptr<PreparedLoad>> Receive(const SinkCall& call);
  // Run on the load worker; a call that cannot start by the deadline fails.
  absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, Deadline deadline);
  absl::Status Clear(const std::string& name, Deadline deadline);
  // Reads what the leader asks this rank to read. Errors: those of reading; a source
  // that is not the leader's here.
  absl::StatusOr<ReadReport> Read(const ExecuteCall& call);
  // Takes what a communicator brings to this rank, which reads nothing.
  absl::Status ReceiveScatter(const ExecuteCall& call);
  absl::Status Commit(const CommitCall& call, Deadline deadline);
  void GiveBack(const std::string& name) { rank_side_.GiveBack(name); }
  void Abort(const std::string& name, const absl::Status& why) { rank_side_.Abort(name, why); }
  // The leader's stream of a load broke in the middle of a transfer; `deadline` of that load.
  void LeaderLost(const std::string& name, Deadline deadline);

  // Refuses everything new, ends watches, aborts loads.
  void Stop();

 private:
  // Its digests beside what the memory has now. TAKEN when a client took it meanwhile.
  static absl::StatusOr<Verification> Compare(const std::string& name, const Catalog::Held& held);
  absl::StatusOr<std::string> Propose(LoadRequest request);
  // The checkpoint that `request` leads to, and whether it was there: on all ranks, where it is
  // for all.
  struct Found {
    std::string name;
    bool resident = false;
    std::vector<std::string> differs = {};
  };
  absl::StatusOr<Found> FindOrLoad(const LoadRequest& request);
  // By rule: has the ranks filled that do not hold their shard of what matches here.
  absl::StatusOr<Found> FillMissing(const Catalog::Match& match, const LoadRequest& request);
  // The resident checkpoint that answers the request, if its files are unchanged.
  absl::StatusOr<std::optional<Catalog::Match>> FindResident(const LoadRequest& request);
  absl::Status ClaimRequestId(const std::string& request_id, const LoadRequest& request,
                              std::string& known_name);
  absl::Status CheckGroupEpoch(uint64_t epoch);
  // Whether that has ended the load; it may have become ACTIVE before.
  absl::StatusOr<bool> CancelLoad(const std::string& name);
  MemberReading PartsOfReading();
  // The end of this rank's part of a load: of one that failed the communicator is seen to.
  absl::StatusOr<ReadReport> EndPart(absl::StatusOr<ReadReport> report);

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
  // Workers are destroyed before what their tasks use.
  QueryQueue questions_;
  Worker load_worker_;
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Follower> follower_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_NODE_H_
