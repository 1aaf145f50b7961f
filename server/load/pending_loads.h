// What clients have asked the group for, until it is loaded: gathers proposals until a load can
// start. In rule form one proposal is enough. In rank form every rank proposes its own tensors,
// except ranks whose shard is resident already. Leader only. Thread-safe; time is passed in.
#ifndef CKPTD_SERVER_LOAD_PENDING_LOADS_H_
#define CKPTD_SERVER_LOAD_PENDING_LOADS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/load/known_checkpoints.h"
#include "server/load/load_state.h"
#include "server/load/proposal.h"
#include "server/protocol/domain.h"

namespace ckptd {

// A load that can start.
struct ReadyLoad {
  std::string name;
  uint64_t order = 0;   // lower ones were asked for before
  LoadRequest request;  // shared fields; rule form: the rules
  Deadline deadline;
  Deadline memory_deadline = {};  // until when it waits for memory
  // The files that the ranks which hold it already were loaded from; empty when there are none.
  std::vector<SourceFile> files;
  // Rank form: each rank's layout; null for ranks that hold it already.
  std::vector<std::shared_ptr<const RankLayout>> layouts;
  std::vector<uint64_t> request_digests;
  std::shared_ptr<LoadStateMachine> state =
      std::make_shared<LoadStateMachine>(LoadState::kQueued);
};

// How a load ended.
struct LoadOutcome {
  absl::Status status;
  std::vector<SourceFile> files;
  std::set<uint32_t> holders;  // ranks that hold the shard now
  // Ranks that were taken for holders and are none (unloaded, evicted, taken): nothing was loaded,
  // and the load waits for their proposals.
  std::set<uint32_t> lost = {};
  // Ranks that had no memory for it while clients hold some: nothing was loaded, and the load waits
  // until they have it. It tries again after pauses that grow.
  std::set<uint32_t> refused_by = {};
  absl::Status refused = {};
  Clock::time_point refused_at = {};
};

class PendingLoads {
 public:
  explicit PendingLoads(uint32_t world_size) : world_size_(world_size), known_(world_size) {}

  // The files of the known checkpoint that a proposal would join, so that the caller
  // can check that they are unchanged (outside any lock).
  std::optional<std::vector<SourceFile>> FilesToCheck(const Proposal& proposal) const;
  // Whether a proposal begins a load: no open load accepts it, and no rank holds the checkpoint.
  bool IsNew(const Proposal& proposal) const;
  // Adds a proposal; returns the name of the checkpoint it leads to. `reuse` is
  // false when the known checkpoint's files have changed: a new one is begun.
  // Nothing is returned in three cases, and the caller waits (WaitWhileFinishing), checks the files
  // and asks again: the load that the proposal would join is being published, and the client may
  // mean other files already; a load fails whose other ranks hold their shards and are not asked
  // again; another known checkpoint may be of the files as they are now. Errors: ResourceExhausted
  // TOO_MANY_LOADS where it would begin one more than may be open.
  absl::StatusOr<std::optional<std::string>> Propose(const Proposal& proposal, bool reuse,
                                                     Clock::time_point now);
  // Each is looked at on every tick, and told to every rank with every heartbeat.
  static constexpr size_t kMostOpenOfRank = 64;  // begun by one rank
  static constexpr size_t kMostOpen = 256;
  // Waits while such a load ends. False at the deadline.
  bool WaitWhileFinishing(const Proposal& proposal, Deadline deadline) const;
  // Waits while the load of that name is published: one rank shows its shard before another does.
  // False at the deadline.
  bool WaitWhilePublishing(const std::string& name, Deadline deadline) const;

  // The rank's trainers that made these proposals (by LoadRequest::proposal_id) have gone: loads
  // that wait for other ranks wait for this one again. One without any proposal left expires.
  void Withdraw(uint32_t rank, const std::vector<std::string>& proposals, Clock::time_point now);

  // A rank that had no memory for these loads has it now.
  void NoteRoom(uint32_t rank, const std::vector<std::string>& names, Clock::time_point now);

  // Takes the loads that can start, in the order in which they were asked for.
  std::vector<ReadyLoad> TakeReady();
  // A runner has begun that load, in that epoch of the group.
  void NoteStarted(const std::string& name, uint64_t epoch);
  // The group is in this epoch. A load that runs in an earlier one will fail: nobody joins it,
  // unless it is being published.
  void NoteEpoch(uint64_t epoch);
  // Whether that load runs in an epoch that has passed.
  bool IsOutOfDate(const std::string& name) const;

  // A load that waits.
  struct Waiting {
    std::string name;
    std::vector<int32_t> ranks;   // that it waits for
    std::string conflict = {};    // what one of them loads instead, for people
    absl::Status cancelled = {};  // why it was cancelled; OK: it was not
    absl::Status refused = {};    // not OK: it waits for memory of `ranks`
  };
  // Takes the waiting loads whose deadline has passed, and those that were cancelled.
  std::vector<Waiting> TakeExpired(Clock::time_point now);
  std::vector<Waiting> ListWaiting() const;
  // The names alone, for when it is daemons that are waited for.
  std::vector<std::string> WaitingNames() const;

  // The jobs whose clients wait at `rank` for a load as this one, of its source and for its user;
  // among them an empty one where that is not known.
  using JobsOf = std::function<std::set<std::string>(uint32_t rank, const LoadRequest& request)>;
  // Cancels loads that have waited for each other's ranks for timing::kConflictPatience: a rank that waits
  // in one does not come to the other. A rank waits in another load of its own job only: loads
  // that are known to be of two jobs are no conflict. `jobs` is called under the lock.
  void EndConflicts(Clock::time_point now, const JobsOf& jobs);
  // Cancels the loads of that source, for that user, that wait for ranks, by rank.
  void CancelWaiting(const std::string& source, const absl::Status& why,
                     std::optional<uid_t> guest = std::nullopt);
  // Cancels a load: a waiting one is among TakeExpired, the runner of one that runs finds out by
  // its state. Nothing where there is no such load, or it is being published. True for a load that
  // was taken to run and will now allocate on no rank, or that `stalls` in its transfer: all ranks
  // can be told at once.
  bool Cancel(const std::string& name, const absl::Status& why, bool stalls = false);
  // The loads that were taken to run and have not begun to allocate though their deadline has
  // passed: their storage may not answer. Later, too, those that `stalls` says it of, which is
  // called under the lock.
  std::vector<std::string> Overdue(
      Clock::time_point now,
      const std::function<bool(const std::string& name)>& stalls = nullptr) const;
  // All loads that have not finished, whether they wait or run.
  std::vector<std::string> Names() const;

  // The load of that name ended. Ranks that proposed it while it ran without
  // them get a load of their own under the same name, unless it failed.
  void Finished(const std::string& name, const LoadOutcome& outcome);
  // As KnownCheckpoints. Loads that wait for memory of that rank ask it again.
  void SetResidents(uint32_t rank, uint64_t epoch,
                    const std::vector<ResidentCheckpoint>& residents);
  // Keeps kMostKnown checkpoints: those noted first are forgotten, except checkpoints that are
  // `resident` at rank 0 or have an open load. A client that asks for a forgotten one loads it anew
  // by rule; by rank it waits for holders, which propose nothing.
  static constexpr size_t kMostKnown = 256;
  void ForgetOldest(const std::set<std::string>& resident);

 private:
  struct PendingLoad {
    LoadRequest request;
    uint64_t load_key = 0;
    uint64_t order = 0;  // the one begun last has the highest
    uint32_t begun_by = 0;
    Deadline deadline;
    Deadline memory_deadline;
    std::shared_ptr<LoadStateMachine> state;
    uint64_t epoch = 0;  // that its runner began in; 0: it has none yet
    // kWaitingForMemory: of these ranks, and not to be tried again before a moment.
    std::set<uint32_t> refused_by;
    absl::Status refused;
    Clock::time_point not_before;
    std::chrono::milliseconds pause{0};  // the last one
    // By rank; null, 0 and empty where the rank has proposed nothing.
    std::vector<std::shared_ptr<const RankLayout>> layouts;
    std::vector<uint64_t> digests;
    std::vector<std::string> proposal_ids;
    // Rank form: ranks that were taken for holders and proposed while it ran.
    struct Late {
      Proposal proposal;
      Deadline deadline;
      Deadline memory_deadline;
    };
    std::vector<Late> late;
    std::optional<Clock::time_point> conflict_since = {};

    void Add(const Proposal& proposal);
    void AddLate();
    // Back to waiting, after its runner has ended without loading anything.
    void Requeue(LoadState to);
    bool waits() const { return !state->has_runner(); }
  };
  PendingLoad NewPendingLoad(const Proposal& proposal, Deadline deadline, Deadline memory_deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether `pending` waits for a rank that has proposed `other`, for the same job.
  static bool WaitsFor(const PendingLoad& pending, const std::vector<int32_t>& missing,
                       const PendingLoad& other, const JobsOf& jobs);
  bool WillFail(const PendingLoad& pending) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsOutOfDate(const PendingLoad& pending) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether a proposal belongs to that load, which waits or runs.
  bool Accepts(const std::string& name, const PendingLoad& pending, const Proposal& proposal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The newest load that accepts it: older ones may be of trainers that have ended since.
  const std::string* FindOpen(const Proposal& proposal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins a load, or one that fills the other ranks of a known checkpoint. Nothing, and errors: as
  // Propose.
  absl::StatusOr<std::optional<std::string>> Begin(const Proposal& proposal, bool reuse,
                                                   Deadline deadline, Deadline memory_deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFinishing(const Proposal& proposal) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(const Proposal& proposal) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ReadyLoad MakeReady(const std::string& name, const PendingLoad& pending) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void WaitForMemory(PendingLoad& pending, const LoadOutcome& outcome);
  // The load asks that rank for memory again.
  static void NoteRoom(PendingLoad& pending, uint32_t rank);
  std::vector<int32_t> MissingOf(const std::string& name, const PendingLoad& pending) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // By rank, a waiting load that has its proposal; null: none.
  std::vector<const PendingLoad*> WaitingByRank() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Waiting Snapshot(const std::string& name, const PendingLoad& pending,
                   const std::vector<const PendingLoad*>& by_rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What one of the `missing` ranks does instead, for people; empty: nothing is known of it.
  std::string DescribeConflict(const PendingLoad& pending, const std::vector<int32_t>& missing,
                               const std::vector<const PendingLoad*>& by_rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t world_size_;
  mutable Mutex mutex_;
  mutable CondVar changed_;  // a load ended, or its state changed
  std::map<std::string, PendingLoad> pending_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  KnownCheckpoints known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_PENDING_LOADS_H_
