// What clients have asked the group for: gathers proposals until a load can
// start. In rule form one proposal is enough; in rank form every rank states its
// tensors, except those whose shard is resident already. Leader only.
// Thread-safe; time is passed in.
#ifndef CKPTD_SERVER_LOAD_PENDING_LOADS_H_
#define CKPTD_SERVER_LOAD_PENDING_LOADS_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/protocol/domain.h"

namespace ckptd {

// A load that can start.
struct ReadyLoad {
  std::string name;
  uint64_t order = 0;  // lower ones were asked for before
  LoadRequest request;  // shared fields; rule form: the rules
  Deadline deadline;
  Deadline memory_deadline = {};  // until when it waits for memory
  // What the ranks that hold it already were loaded from; empty when there are none.
  std::vector<SourceFile> files;
  // Rank form: per rank what it stated; null for ranks that hold it already.
  std::vector<std::shared_ptr<const RankLayout>> stated;
  std::vector<uint64_t> request_digests;
};

// A checkpoint that some ranks hold.
struct KnownCheckpoint {
  std::string name;
  uint64_t load_key = 0;
  std::vector<SourceFile> files;
  std::vector<uint64_t> request_digests;  // per rank
  std::set<uint32_t> holders;
  uint64_t order = 0;  // the one noted last has the highest
};

// How a load ended.
struct LoadOutcome {
  absl::Status status;
  std::vector<SourceFile> files;
  std::set<uint32_t> holders;  // ranks that hold the shard now
  // Ranks that were taken for holders and are none (unloaded, evicted, taken):
  // nothing was loaded, the pending load has to wait for their statements.
  std::set<uint32_t> lost = {};
  // Ranks that had no memory for it while clients hold some: nothing was loaded, the pending load has to
  // wait until they have, and for a while, that is longer each time.
  std::set<uint32_t> refused_by = {};
  absl::Status refused = {};
  Clock::time_point refused_at = {};
};

// What a rank asks for. Digests of many tensors take long: they are made here, outside of
// any lock.
struct Proposal {
  Proposal(uint32_t of, LoadRequest asked)
      : rank(of), request(std::move(asked)), load_key(LoadKey(request)),
        digest(RequestDigest(request)) {}

  uint32_t rank;
  LoadRequest request;
  uint64_t load_key;
  uint64_t digest;
};

class PendingLoads {
 public:
  explicit PendingLoads(uint32_t world_size) : world_size_(world_size), told_(world_size) {}

  // The files of the known checkpoint that a proposal would join, so that the caller
  // can check that they are unchanged (outside any lock).
  std::optional<std::vector<SourceFile>> FilesToCheck(const Proposal& proposal) const;
  // Whether a proposal begins what nobody has asked for yet, nor holds.
  bool IsNew(const Proposal& proposal) const;
  // Adds a proposal; returns the name of the checkpoint it leads to. `reuse` is
  // false when the known checkpoint's files have changed: a new one is begun.
  // Nothing while the load that it would join is being published: who asks then may
  // mean other files already (WaitWhileEnding, then check them and ask again); nor while
  // one fails whose shards other ranks hold, which are not asked for again; nor where
  // another known checkpoint may be of the files as they are now. Errors: ResourceExhausted
  // TOO_MANY_LOADS where it would begin one more than may be open.
  absl::StatusOr<std::optional<std::string>> Propose(const Proposal& proposal, bool reuse,
                                                     Clock::time_point now);
  // Each is looked at on every tick, and told to every rank with every heartbeat.
  static constexpr size_t kMostOpenOfRank = 64;  // that it asked for first
  static constexpr size_t kMostOpen = 256;
  // Waits while such a load ends. False at the deadline.
  bool WaitWhileFinishing(const Proposal& proposal, Deadline deadline) const;

  // The rank's trainers of these statements have gone: pending loads that have not begun wait for
  // the rank again. One that is left without any statement expires.
  void Withdraw(uint32_t rank, const std::vector<std::string>& statements, Clock::time_point now);

  // Ranks that had no memory for a pending load have it now.
  void NoteRoom(uint32_t rank, const std::vector<std::string>& names, Clock::time_point now);

  // Takes the pending loads that can start, those first that were asked for first.
  std::vector<ReadyLoad> TakeReady();
  // Takes the pending loads whose deadline has passed, with the ranks that are missing, and those
  // that were given up.
  struct Expired {
    std::string name;
    std::vector<int32_t> waiting;
    std::string elsewhere = {};   // what one of them waits for instead, for people
    absl::Status cancelled = {};  // why it was given up; OK: its deadline has passed
    absl::Status refused = {};    // not OK: it waits for memory of `waiting`
  };
  std::vector<Expired> TakeExpired(Clock::time_point now);
  // The jobs whose clients wait at `rank` for a load of `source`; among them an empty one where
  // that is not known.
  using JobsOf = std::function<std::set<std::string>(uint32_t rank, const std::string& source)>;
  // Gives up pending loads that have waited for each other's ranks for kConflictPatience: these load
  // something else, and a rank that waits there does not come here. Nobody joins them. A rank
  // waits elsewhere for its own job: those that are known to be of another one are not looked at.
  // `jobs` is called under the lock.
  void EndConflicts(Clock::time_point now, const JobsOf& jobs);
  static constexpr std::chrono::seconds kConflictPatience{5};
  // Gives up the pending loads of that source that wait for ranks, by rank. Nobody joins them.
  void GiveUp(const std::string& source, const absl::Status& why);
  // Open pending loads and the ranks they wait for.
  std::vector<Expired> Waiting() const;
  // The names alone, for when it is daemons that are waited for.
  std::vector<std::string> WaitingNames() const;
  // A running load is about to end, which ranks may hear before Finished: nobody
  // joins it from now on.
  void MarkFinishing(const std::string& name, bool failed);
  // A running load that has not come to its end will fail: nobody joins it from now on.
  void MarkDoomed(const std::string& name);
  // Gives a pending load up: one that waits is among TakeExpired with `why`, the runner of one that
  // runs finds it in Cancelled. Nobody joins it from now on. Nothing where there is no such
  // pending load, or its end is being published. True when one runs that will begin to allocate on no rank, whatever
  // its runner still waits for: all ranks can be told.
  bool Cancel(const std::string& name, const absl::Status& why);
  // The runner is about to ask the ranks for memory. Cancelled, if it was given up before.
  absl::Status BeginAllocation(const std::string& name);
  // The pending loads that run and have begun to allocate on no rank though their deadline has passed: what they
  // wait for may be storage that does not answer.
  std::vector<std::string> Overdue(Clock::time_point now) const;
  // Why somebody has given that pending load up; OK: nobody has.
  absl::Status Cancelled(const std::string& name) const;
  // Of all pending loads that have not finished: those that wait, and those taken to run.
  std::vector<std::string> Names() const;

  // The load of that name ended. Ranks that asked for it while it ran without
  // them get a pending load of their own under the same name, unless it failed.
  void Finished(const std::string& name, const LoadOutcome& outcome);
  // A rank joined and told what it holds; or left, holding nothing. `epoch` is the group's
  // then: of two that come in the wrong order, the later one counts.
  void SetResidents(uint32_t rank, uint64_t epoch,
                    const std::vector<ResidentCheckpoint>& residents);
  // Ranks do not tell when they let go of a shard: of more than kMostKnown checkpoints those
  // noted first are forgotten, but none that is `resident`, which is rank 0's, or has a pending load.
  // Who asks for one again loads it anew, by rule; by rank, those who hold theirs state nothing.
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
    std::set<uint32_t> refused_by;  // it waits for memory of these
    absl::Status refused;
    Clock::time_point not_before;
    std::chrono::milliseconds pause{0};  // until then, after the last refusal
    bool running = false;
    bool finishing = false;
    bool doomed = false;
    absl::Status cancelled;
    bool allocation_started = false;
    std::vector<std::shared_ptr<const RankLayout>> stated;
    std::vector<uint64_t> digests;  // per rank, 0 when not stated
    std::vector<std::string> statements;  // per rank, as they came
    // Rank form: ranks that were taken for holders and asked while it ran.
    struct Late {
      Proposal proposal;
      Deadline deadline;
      Deadline memory_deadline;
    };
    std::vector<Late> late;
    std::optional<Clock::time_point> conflict = {};  // since when it waits so
  };
  // Whether `pending load` waits for a rank that has stated its tensors in `other`, for the same job.
  static bool WaitsFor(const PendingLoad& pending, const std::vector<int32_t>& missing, const PendingLoad& other,
                       const JobsOf& jobs);
  // The pending load waits again, for memory.
  static void WaitForMemory(PendingLoad& pending, const LoadOutcome& outcome);
  PendingLoad NewPendingLoad(const Proposal& proposal, Deadline deadline, Deadline memory_deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Add(PendingLoad& pending, const Proposal& proposal);
  // Whether a proposal belongs to that open or running pending load.
  bool Accepts(const std::string& name, const PendingLoad& pending, const Proposal& proposal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The pending load waits again, for ranks that turned out to hold nothing.
  void Requeue(const std::string& name, PendingLoad& pending, const std::set<uint32_t>& lost)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteHolders(const std::string& name, const PendingLoad& pending, const LoadOutcome& outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The statements that came late, in the pending load itself.
  static void AddLate(PendingLoad& pending);

  const KnownCheckpoint* FindKnown(const Proposal& proposal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<int32_t> MissingOf(const std::string& name, const PendingLoad& pending) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckRoom(const Proposal& proposal) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // By rank, an open pending load that has its statement and waits for others; null: none.
  std::vector<const PendingLoad*> WhereStated() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Expired Snapshot(const std::string& name, const PendingLoad& pending,
               const std::vector<const PendingLoad*>& stated) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where one of the `waiting` ranks is instead, for people; empty: nothing is known of it.
  std::string DescribeConflict(const PendingLoad& pending, const std::vector<int32_t>& waiting,
                        const std::vector<const PendingLoad*>& stated) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool IsFinishing(const Proposal& proposal) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t world_size_;
  mutable Mutex mutex_;
  mutable CondVar ended_;
  std::map<std::string, PendingLoad> pending_ ABSL_GUARDED_BY(mutex_);
  uint64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t noted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, KnownCheckpoint> known_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> told_ ABSL_GUARDED_BY(mutex_);  // by rank, the epoch of its residents
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_PENDING_LOADS_H_
