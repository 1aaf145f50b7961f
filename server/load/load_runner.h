// One load, as the leader runs it: the stages open, plan, prepare on every rank, transfer and
// commit. Any rank's error ends it for all with that rank's reason. Runs on the load worker.
#ifndef CKPTD_SERVER_LOAD_LOAD_RUNNER_H_
#define CKPTD_SERVER_LOAD_LOAD_RUNNER_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/layout/layout.h"
#include "common/source/access.h"
#include "server/catalog/catalog.h"
#include "server/catalog/lease_table.h"
#include "server/collective/peer_access.h"
#include "server/collective/straggler_detector.h"
#include "server/group/membership.h"
#include "server/load/execute_fanout.h"
#include "server/load/part_reader.h"
#include "server/load/pending_loads.h"
#include "server/load/progress_meter.h"
#include "server/load/scatter_plan.h"
#include "server/load/storage_stalls.h"
#include "server/load/worker.h"
#include "server/protocol/load_observer.h"

namespace ckptd {

class LoadRunner {
 public:
  struct Parts {
    Catalog& catalog;
    Membership& membership;
    PeerAccess peers;
    const std::atomic<bool>& stopping;
    ReadingOptions reading;
    ReaderPolicy reader = ReaderPolicy::kRank0;
    LoadObserver* observer = nullptr;    // null: none
    const LeaseTable* leases = nullptr;  // rank 0's; null: none
    // The worker that this runs on, and who else waits for storage; null: nobody else is there.
    Worker* worker = nullptr;
    StorageStalls* stalls = nullptr;
  };
  // `session` has all ranks' links; the load belongs to its epoch. The runner advances load.state,
  // and ends when that is cancelled.
  LoadRunner(Parts parts, const ReadyLoad& load, Membership::Session session);

  // On an error every rank has been told. When holders are lost nothing has begun; when ranks
  // have refused it, they have given back what it took.
  LoadOutcome Run();
  // How far a member has come with its share of some load. Thread-safe.
  void NoteReading(uint32_t rank, const ReadingNow& reading);
  const std::string& name() const { return load_.name; }
  const std::string& source() const { return load_.request.source; }
  // Whether it does nothing but read: its ranks can be told that it has failed. Memory that its
  // reads may still write to is used for nothing else.
  bool only_reads() const { return only_reads_; }
  StorageWatch& watch() const { return *access_.watch; }
  // Thread-safe.
  Progress progress() const { return meter_.Read(); }

 private:
  // One rank that lacks the shard.
  struct Participant {
    uint32_t rank = 0;
    const PlannedRank* plan = nullptr;  // in plan_
    absl::StatusOr<PrepareReply> prepared = PrepareReply();
    PrepareReply reply;
    bool unmapped = false;  // as PrepareCall::unmapped
    // What readers did for it, all together.
    uint64_t filled_bytes = 0;
    uint64_t streamed_bytes = 0;
    uint64_t carried_bytes = 0;
    std::vector<uint64_t> digests;
  };
  absl::Status Load();
  // Rank form: asks the ranks that are taken for holders; fills `lost`.
  absl::Status FindLost(std::set<uint32_t>& lost);
  absl::Status Open();
  // Others may load while `work`, which only reads, stands still.
  template <typename Work>
  auto OnlyRead(const Work& work) const -> decltype(work());
  absl::Status PlanAll();
  // The cohorts of the ranks that do not hold their shard yet.
  absl::StatusOr<std::vector<Cohort>> Cohorts() const;
  // Rank form: nothing in the source that no rank wants, if they say so.
  absl::Status CheckNames() const;
  // Rank form: what is one tensor in a model is one in the source, or equal ones.
  absl::Status CheckTied() const;
  absl::Status PrepareAll();
  absl::Status Transfer();
  // The leader's own share.
  absl::Status Read(const ReaderShare& share, PartReader& reader);
  std::vector<ReaderShare> Shares() const;
  // Chooses how bytes travel in this load; fills comm_ and no_comm_.
  void ChooseComm(const std::vector<ReaderShare>& shares);
  // A rank that would take part in collectives while its GPU may be at work.
  std::optional<uint32_t> RankWithActiveLease() const;
  PartReader MakeReader(const ReaderShare& share) const;
  ReadOrder OrderFor(const ReaderShare& share, const std::vector<Cohort>& cohorts) const;
  // Rank form: the layouts of these ranks, equal ones once; rule form: nothing.
  std::vector<Cohort> LayoutsOf(const std::vector<uint32_t>& ranks) const;
  // What a communicator carries: of the leader's own share what it could not reach, and, where
  // it is for all bytes, of all shares. Fills scatters_.
  absl::Status PlanScatters(const std::vector<ReaderShare>& shares, const PartReader* own);
  // The id that those ranks join by, of one that they all hold where there is one.
  absl::StatusOr<std::string> CommunicatorFor(const std::vector<uint32_t>& ranks);
  void StartMembers(const std::vector<ReaderShare>& shares);
  // Null: that rank has its shard.
  Participant* Find(uint32_t rank);
  void Count(const ReadReport& report);
  absl::Status CommitAll();
  absl::Status Prepare(Participant& participant);
  // Whether the ranks that have refused it all did so for memory that clients hold, and it waits
  // for that: they are noted in refused_by_.
  bool WaitsForMemory(const absl::Status& prepared);
  // Says of rank 0's memory that there is none because of reads that have not returned.
  absl::Status NameHeldMemory(const absl::Status& status) const;
  void GiveBackAll();
  // To those that held their shard before.
  absl::Status CompleteHolders();
  // Unmaps memory that ranks have released: until then it is free for nobody on this host, rank 0
  // included. Whether a rank that was refused memory may find some now.
  bool UnmapReleased();
  // Tells every rank that the load has failed.
  void AbortAll(const absl::Status& why);
  // Error of `rank`, for everybody: its code and reason, its number in front. A
  // rank that does not answer leaves the group.
  absl::Status AttributeToRank(uint32_t rank, const absl::Status& status);
  // An error of a communicator, which knows that somebody is gone or missing and not who: that of
  // the rank that does not answer. Where all answer, NCCL itself cannot connect them.
  absl::Status ProbeUnresponsive(const absl::Status& status);
  // When a wait for a communicator has passed its deadline: as StragglerDetector::NameStragglers.
  absl::Status WaitForStragglers(const absl::Status& status);
  // Where the choice is left to the daemons: the next load of this group goes in streams when
  // this one has failed by NCCL before any exchange was done.
  void DisableUnusedComm(const absl::Status& why);
  // Not OK when several readers have waited for each other for too long: none of them can
  // tell by itself a link that stands still from storage that is slow elsewhere.
  absl::Status CheckStalled(std::chrono::nanoseconds grace);
  // The same for an error that names a rank itself; others as they are.
  absl::Status AttributeByFacts(const absl::Status& status);
  absl::Status Interrupted() const;
  PrepareCall CallFor(const Participant& participant) const;
  // Calls `act` for every participant at once and returns the first error, of several one that
  // is no other's consequence.
  absl::Status ForEach(const std::function<absl::Status(Participant&)>& act);
  // Errors: why the load was cancelled.
  absl::Status Enter(LoadState state);
  // To the observer; the members are told what is returned.
  Progress ShowProgress();

  Parts parts_;
  const ReadyLoad& load_;
  const Membership::Session session_;
  const SourceAccess access_;
  const ReaderPolicy reader_;
  mutable std::atomic<bool> only_reads_ = false;
  ProgressMeter meter_;
  std::shared_ptr<const CheckpointIndex> index_;
  std::shared_ptr<const GroupPlan> plan_;
  std::vector<Participant> participants_;
  std::vector<uint32_t> holding_;  // ranks that turned out to hold their shard
  std::set<uint32_t> refused_by_;
  CommChoice comm_ = CommChoice::kAuto;
  std::string no_comm_;  // why a communicator carries nothing, for people; empty: it may
  ScatterPlan scatters_;
  std::unique_ptr<ExecuteFanout> fanout_;
  Mutex mutex_;
  std::set<uint32_t> holders_ ABSL_GUARDED_BY(mutex_);
  StragglerDetector exchanges_;
};

template <typename Work>
auto LoadRunner::OnlyRead(const Work& work) const -> decltype(work()) {
  only_reads_ = true;
  auto result = RunOutside(parts_.worker, *access_.watch, work);
  only_reads_ = false;
  return result;
}

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_LOAD_RUNNER_H_
