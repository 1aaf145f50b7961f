// One rank's part of a load: plan, allocate, clear, publish. Called by the
// leader through a MemberLink. Blocking; the load worker runs it, one call at a
// time.
#ifndef CKPTD_SERVER_LOAD_RANK_LOAD_H_
#define CKPTD_SERVER_LOAD_RANK_LOAD_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/catalog/catalog.h"
#include "server/catalog/host_tier.h"
#include "server/catalog/lease_table.h"
#include "server/collective/communicator_cache.h"
#include "server/load/prepared_load.h"
#include "server/protocol/domain.h"

namespace ckptd {

class RankLoad {
 public:
  struct Options {
    uint32_t rank = 0;
    std::string memory_endpoint;  // where the leader fetches our descriptors
    HostTier* host_tier = nullptr;  // outlives this; null: none
    const CommunicatorCache* comms = nullptr;  // outlives this; null: none
    const LeaseTable* leases = nullptr;  // outlives this; null: none
  };
  RankLoad(Catalog& catalog, MemoryBackend& backend, Options options)
      : catalog_(catalog), backend_(backend), options_(std::move(options)) {}

  // Plans this rank, compares digests; publishes what another resident checkpoint of the files
  // has all of. Else it allocates the slab; fills and publishes it when
  // the host tier has its bytes. `since` is when the call came in, as Catalog::Begin takes it. Errors: PLAN_MISMATCH, NO_MEMORY,
  // the planner's, CHECKPOINT_NOT_FOUND when the load was aborted meanwhile. On
  // an error the entry is left to Abort.
  absl::StatusOr<PrepareReply> Prepare(const PrepareCall& call, uint64_t since = Catalog::kNow);
  // Zeroes what the plan leaves empty; while bytes are being placed elsewhere.
  absl::Status Clear(const std::string& name);
  // The prepared load that a reader elsewhere sends bytes of. Thread-safe. Errors:
  // EPOCH_CHANGED, CHECKPOINT_NOT_FOUND.
  absl::StatusOr<std::shared_ptr<PreparedLoad>> Receive(uint64_t epoch, const std::string& name);
  // Lets go of what Prepare took; the load goes on later, with another Prepare.
  void GiveBack(const std::string& name);
  // Counts, seals, publishes; of a shard that was here already, only notes that all ranks hold
  // theirs. Errors: Internal COVERAGE when readers placed another
  // number of bytes than the plan has, those of receiving.
  absl::Status Commit(const CommitCall& call);
  bool Holds(const std::string& name) const { return catalog_.leases().Look(name).ok(); }
  void Abort(const std::string& name, const absl::Status& why) { catalog_.Fail(name, why); }

 private:
  void ForgetOver();
  absl::StatusOr<Shard> Plan(const PrepareCall& call) const;
  // Whether the shard is here already. By rule it then stays until the load has ended.
  bool HoldsUntilOthersDo(const PrepareCall& call, uint64_t since);
  // Whether a checkpoint that is resident here has all of the shard, which is ACTIVE then as a
  // view of it.
  absl::StatusOr<bool> ServeResident(const PrepareCall& call, const Shard& shard);
  // Whether the host tier had the shard, which is ACTIVE then.
  absl::StatusOr<bool> Restore(const PrepareCall& call, const RankPlan& plan,
                               const ShardMemory& memory);
  // Where members read, another group is another reader: who was restarted has mapped nothing, and
  // cannot map what was sealed. A restarted leader is noticed when it is joined.
  void NoteReaders(const PrepareCall& call);
  void KeepPristine(const std::string& name, const PreparedLoad& incoming, const RankPlan& plan,
                    const std::vector<uint64_t>& digests);

  Catalog& catalog_;
  MemoryBackend& backend_;
  const Options options_;
  uint64_t epoch_ = 0;  // of the last load; the load worker's
  Mutex mutex_;
  // Loads from Prepare to their end; those that failed go with the next Prepare.
  std::map<std::string, std::shared_ptr<PreparedLoad>> incoming_ ABSL_GUARDED_BY(mutex_);
};

// What `rank` receives under `request`: the rules applied to the index, or the
// rank's own layout. Errors: LAYOUT_INVALID, LAYOUT_MISMATCH, WRONG_RANK.
absl::StatusOr<RankLayout> LayoutOfRank(const LoadRequest& request, const CheckpointIndex& index,
                                        uint32_t rank);
// The plan of one rank, with its copies. Errors: those of LayoutOfRank and PlanRank.
absl::StatusOr<RankPlan> PlanOfRank(const LoadRequest& request, const CheckpointIndex& index,
                                    uint32_t rank);
// The same for several ranks. `layouts` are theirs, in rank form: one per
// rank, in the same order.
absl::StatusOr<std::vector<Cohort>> CohortsOf(
    const LoadRequest& request, const CheckpointIndex& index, std::span<const uint32_t> ranks,
    std::span<const std::shared_ptr<const RankLayout>> layouts);

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_RANK_LOAD_H_
