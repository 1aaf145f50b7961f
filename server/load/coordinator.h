// The leader's side of the group: takes proposals, waits until the group and the proposals of all
// ranks are complete, and runs loads one after the other on the load worker. Every waiting rank is
// told how its load ends. Thread-safe.
#ifndef CKPTD_SERVER_LOAD_COORDINATOR_H_
#define CKPTD_SERVER_LOAD_COORDINATOR_H_

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/catalog/catalog.h"
#include "server/catalog/catalog_progress.h"
#include "server/catalog/lease_table.h"
#include "server/collective/peer_access.h"
#include "server/group/group_participants.h"
#include "server/group/holdings.h"
#include "server/group/local_participants.h"
#include "server/group/membership.h"
#include "server/group/membership_diff.h"
#include "server/load/load_log.h"
#include "server/load/pending_loads.h"
#include "server/load/source_checker.h"
#include "server/load/storage_stalls.h"
#include "server/load/worker.h"
#include "server/protocol/load_observer.h"

namespace ckptd {

class LoadRunner;

class Coordinator {
 public:
  struct Parts {
    Catalog& catalog;
    Membership& membership;
    PeerAccess peers;
    Worker& load_worker;
    SourceChecker& lookups;
    StorageStalls& stalls;
    ReadingOptions reading;
    ReaderPolicy reader = ReaderPolicy::kRank0;
    const LeaseTable* leases = nullptr;         // rank 0's; null: none
    LocalParticipants* participants = nullptr;  // rank 0's; null: none
    // Beside those that show progress to clients and log how loads end. No nulls.
    std::vector<LoadObserver*> observers = {};
  };
  explicit Coordinator(Parts parts);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // A client of `rank` asked for this; the name of the checkpoint it leads to. The request has
  // passed CheckRequest. Errors: DEADLINE (file metadata), STORAGE_STALLED, TOO_MANY_LOADS, those
  // of the source.
  absl::StatusOr<std::string> Propose(uint32_t rank, const IdentifiedRequest& asked);
  // The same for a request from another daemon. Errors: those of CheckRequest, too.
  absl::StatusOr<std::string> ProposeForMember(uint32_t rank, LoadRequest request);
  // As Holdings, once a load of that name that is being published has ended.
  std::set<uint32_t> FindMissing(const std::string& name);
  // An operator of `rank` gives that load up, for all ranks. Does not wait for its end;
  // nothing where no such load waits or runs. Errors: WRONG_RANK.
  absl::Status CancelFor(uint32_t rank, const std::string& name);
  // Whether the group has changed since that load, which runs, began: it will fail.
  bool IsOutOfDate(const std::string& name);

  absl::StatusOr<JoinReply> Join(const MemberIdentity& identity,
                                 const std::vector<ResidentCheckpoint>& residents);
  absl::StatusOr<HeartbeatReply> Heartbeat(const HeartbeatCall& call);

  // Rank 0's clients have news for the group: looks at them before the next heartbeat is due.
  void WakeForHeartbeat();

  // Aborts what runs, fails what waits.
  void Stop();

 private:
  // Whether the files of the checkpoint that this request would join are unchanged.
  absl::StatusOr<bool> CanReuse(const Proposal& proposal);
  // True; for the first request of a source that cannot be loaded, why.
  absl::StatusOr<bool> CheckSource(const Proposal& proposal);
  void Loop();
  void Tick();
  // Drops the memory and shards of ranks that left the group.
  void ForgetDeparted();
  // Rank 0 tells of its participants as members do with each heartbeat.
  void TellOfParticipants();
  // Cancels loads that wait for a rank whose client has failed.
  void CancelEnded();
  void PostReady();
  void FailExpired();
  void FailOverdue();
  std::string WhatHolds(const std::string& name) const;
  void Cancel(const std::string& name, const absl::Status& why);
  // The loads that wait for ranks, and for which.
  std::vector<std::pair<std::string, Progress>> Gathering() const;
  void ShowWaiting();
  // What this rank holds, and has room for, as members tell with their heartbeats.
  void NoteOwn();
  std::set<std::string> Loading() const;  // names of all pending loads
  void FailForgotten();
  std::vector<LoadObserver*> AllObservers();
  void RunLoad(const ReadyLoad& load);
  // Its stages; has told the observers when it has ended.
  LoadOutcome RunStages(const ReadyLoad& load);
  // Since when a call to storage alone keeps that load from going on; unset: something else does.
  std::optional<StorageWatch::Stalled> StalledIn(const std::string& name) const;
  // Whether that load stands in such a call, or waits behind loads that have passed it since.
  bool StandsStill(const std::string& name) const;
  // Tells every rank that is a member how the load ended.
  void AbortEverywhere(const std::string& name, const absl::Status& why);

  Parts parts_;
  CatalogProgress catalog_progress_;
  LoadLog log_;
  LoadObservers observers_;
  PendingLoads pending_;
  GroupParticipants participants_;
  Holdings holdings_;
  MembershipDiff present_;  // at the last tick
  uint64_t present_epoch_ = 0;
  std::atomic<bool> stopping_ = false;
  mutable Mutex mutex_;
  CondVar changed_;
  bool wake_ ABSL_GUARDED_BY(mutex_) = false;
  // By name. One has the turn of the load worker, the others wait for storage.
  std::map<std::string, LoadRunner*> running_ ABSL_GUARDED_BY(mutex_);
  // Loads that have ended, of which not all ranks have been told: heartbeats do not overtake that.
  std::set<std::string> being_told_ ABSL_GUARDED_BY(mutex_);
  std::thread ticker_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_COORDINATOR_H_
