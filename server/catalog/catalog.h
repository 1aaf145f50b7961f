// The checkpoints of one daemon (one rank): their states, memory and leases'
// counts. LOADING -> ACTIVE -> (UNLOADING) | FAILED | TAKEN. Thread-safe: one
// mutex, no callback and no slow call under it.
#ifndef CKPTD_SERVER_CATALOG_CATALOG_H_
#define CKPTD_SERVER_CATALOG_CATALOG_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/catalog/shard_memory.h"
#include "server/memory/memory.h"
#include "server/protocol/domain.h"
#include "server/protocol/timing.h"

namespace ckptd {

class Catalog {
 public:
  // `backend` outlives the catalog and every ShardMemory it gives out.
  Catalog(MemoryBackend& backend, uint32_t rank, uint32_t world_size);

  // FailedPrecondition HANDLE_KIND where this memory cannot be handed out as the request
  // asks.
  absl::Status CheckKind(const LoadRequest& request) const;

  // A LOADING or ACTIVE checkpoint that answers `request`, with the files it
  // was read from (empty while LOADING before they are known).
  struct Match {
    std::string name;
    bool active = false;
    std::vector<SourceFile> files;
    bool gathering = false;  // it waits for the group
    // It was loaded for this: with digests, where that had them.
    IdentifiedRequest asked = {};
  };
  std::optional<Match> FindMatch(const IdentifiedRequest& asked) const;
  // Fields in which the newest resident checkpoint of the same source differs;
  // empty when there is none.
  std::vector<std::string> NearMiss(const LoadRequest& request) const;

  // A moment of this catalog, for Begin.
  uint64_t Tick() const;
  static constexpr uint64_t kNow = UINT64_MAX;
  // Makes a LOADING entry; nothing when one of that name is LOADING or ACTIVE. A
  // load that has failed here after the moment `since` stays FAILED: its end may
  // overtake the answer that tells us its name.
  void Begin(const std::string& name, const IdentifiedRequest& asked, uint64_t since = kNow);
  void UpdateProgress(const std::string& name, const Progress& progress);

  // One that is ACTIVE here is to be filled on ranks that lack it: until that load has ended,
  // clients see it as LOADING. Nothing where it has ended after the moment `since`.
  void BeginFilling(const std::string& name, uint64_t since);
  // Every rank holds its shard. False where it is not ACTIVE here.
  bool Complete(const std::string& name);
  // On how many ranks it is, as the leader has counted.
  void NoteResidence(const std::string& name, uint32_t ranks);
  // Those that are ACTIVE here.
  std::set<std::string> ActiveNames() const;

  // Memory for a LOADING checkpoint; evicts unleased, unpinned ones, least
  // recently used first, when the budget asks for it and that can help. Errors: NO_MEMORY with
  // the numbers, those of CheckKind, CHECKPOINT_NOT_FOUND when the load was aborted meanwhile.
  absl::StatusOr<std::shared_ptr<ShardMemory>> Allocate(const PrepareCall& call, Shard shard);
  // Evicts a checkpoint for `bytes` that the backend has `refused`: whoever asked tries again.
  // Errors: `refused`, where that helps nothing.
  absl::Status MakeRoom(uint64_t bytes, const absl::Status& refused);
  // What is ACTIVE here, of the same files and kept as `call` asks: it may have all that is to be
  // loaded. Newest first.
  struct Resident {
    std::string name;
    uint64_t generation = 0;
    LoadRequest request;
    std::shared_ptr<const Shard> shard;
  };
  std::vector<Resident> MayServe(const PrepareCall& call) const;
  // LOADING -> ACTIVE, as a view of the memory of `owner`, in which `shard` says where its tensors
  // lie. By rule, clients see it as LOADING until every rank holds its shard. A view has no memory
  // of its own: leases on it count on its owner, it is pinned, unloaded and evicted with it, and it
  // is not listed. False when the owner has gone meanwhile.
  // Errors: CHECKPOINT_NOT_FOUND when the load was aborted.
  absl::StatusOr<bool> PublishView(const PrepareCall& call, const Resident& owner, Shard shard);
  // NO_MEMORY has this fact where clients could let go of what it lacks: the names of what
  // they hold. Else waiting helps nothing.
  static constexpr char kHeldBy[] = "held_by";
  // Its memory goes, the load stays: there is not enough of it on another rank.
  void GiveBack(const std::string& name);
  // Evicts for loads that were refused memory here and wait for it, in their order; those that
  // would get it now. Not those whose room has yet to be freed (SetLater).
  std::vector<std::string> MakeRoomForWaiting();
  bool AnyWaiting() const;
  // Says which processes hold a checkpoint. Set once, before the catalog is used.
  using Holders = std::function<std::vector<int32_t>(const std::string& name)>;
  void SetHolders(Holders holders) { holders_ = std::move(holders); }
  // Where memory that MakeRoomForWaiting evicts is freed. That may take seconds that a heartbeat
  // has not. It is behind the loads that run, as none of them is to find memory half gone. Set
  // once, before the catalog is used; else it is freed at once.
  using Later = std::function<void(std::function<void()>)>;
  void SetLater(Later later) { later_ = std::move(later); }
  // True when the shard of this checkpoint is here, with that plan.
  bool HasActive(const std::string& name, uint64_t rank_digest) const;
  std::shared_ptr<ShardMemory> LoadingMemory(const std::string& name) const;
  std::shared_ptr<const Shard> LoadingShard(const std::string& name) const;
  // LOADING -> ACTIVE. Seals, unless the load is meant to be EXCLUSIVE.
  absl::Status Publish(const CommitCall& call);
  // LOADING -> FAILED. An ACTIVE shard is whole, whatever became of other ranks.
  // A name that is not known yet is remembered for Begin.
  void Fail(const std::string& name, const absl::Status& why);
  // All that were begun up to the moment `since`.
  void FailAllLoading(const absl::Status& why, uint64_t since = kNow);
  // Those that were begun up to the moment `since` and are not in `known`: what
  // the leader no longer runs, it will not end either.
  void FailForgotten(const std::set<std::string>& known, uint64_t since);
  // ACTIVE -> TAKEN: a client owns the memory.
  void MarkTaken(const std::string& name, uint64_t generation);

  absl::StatusOr<CheckpointInfo> Get(const std::string& name) const;
  std::vector<CheckpointInfo> List() const;  // newest first
  // Waits until the entry differs from `seen` (its version; 0 at first), which
  // is updated, or the deadline. Errors: CHECKPOINT_NOT_FOUND.
  absl::StatusOr<CheckpointInfo> Watch(const std::string& name, uint64_t& seen,
                                       Deadline deadline) const;

  // A client begins to watch the entry, and ends. While a load waits for the group, a
  // rank's statement counts as long as its client watches: one that has watched and is gone
  // for timing::kAbandoned has ended.
  // Returns the generation, for WatcherLeft.
  uint64_t AddWatcher(const std::string& name);
  void WatcherLeft(const std::string& name, uint64_t generation, Clock::time_point now);
  // A client asks for the entry from time to time: who else watches it says nothing of that.
  void WasPolled(const std::string& name);
  // A client was told this name, and has yet to watch it.
  void ExtendGrace(const std::string& name, Clock::time_point now);
  // LOADING -> FAILED for those whose clients are gone; their proposal ids.
  std::vector<std::string> ReapAbandoned(Clock::time_point now);

  // Waits until the entry is no longer LOADING, is gone, or the deadline.
  void WatchEnd(const std::string& name, Deadline deadline) const;

  // Counts one lease on an ACTIVE checkpoint. Errors: CHECKPOINT_NOT_FOUND,
  // NOT_ACTIVE, LOAD_FAILED (with the load's own reason in the sentence), TAKEN,
  // LEASED beside an EXCLUSIVE lease; LEASED and EXCLUSIVE_NEEDS_COPY for an
  // EXCLUSIVE one.
  struct Held {
    std::shared_ptr<ShardMemory> memory;
    std::shared_ptr<const Shard> shard;
    // Of this load: one of the same name that follows it has another.
    uint64_t generation = 0;
    std::string name = {};  // that the lease counts on: of a view, its owner
    // The table of all that lies in the memory: of a view, its owner's.
    std::shared_ptr<const Shard> whole = {};
  };
  // `request_id`: of the load that led here, as KeepFor was told.
  absl::StatusOr<Held> Hold(const std::string& name, AttachMode mode,
                            const std::string& request_id = "");
  // The client of that request waits for it, and will acquire it: it is not evicted until then,
  // nor for timing::kKeptForClient after it has become ACTIVE. Of more requests than kMostKept, the first ones
  // count. False where there is no such checkpoint.
  bool KeepFor(const std::string& name, const std::string& request_id);
  // That client has gone.
  void KeepNoMore(const std::string& name, const std::string& request_id);
  // Instead of timing::kKeptForClient. Set before the catalog is used.
  void SetKept(std::chrono::nanoseconds kept) { kept_ = kept; }
  static constexpr size_t kMostKept = 1024;
  void Release(const std::string& name, uint64_t generation);
  // The shard without a lease, for verifying it.
  absl::StatusOr<Held> Look(const std::string& name) const;
  // Its table; also of a shard that was TAKEN meanwhile.
  absl::StatusOr<std::shared_ptr<const Shard>> Table(const std::string& name) const;

  // The load that has yet to end and needs the memory of `name`: its own, or that of another view
  // of it. Empty: none.
  std::string LoadThatNeeds(const std::string& name) const;
  // Bytes given back. `idle`: LEASED also where it is kept for a client (KeepFor). Errors: CHECKPOINT_NOT_FOUND, LEASED, NOT_ACTIVE.
  absl::StatusOr<uint64_t> Unload(const std::string& name, bool force, bool idle = false);
  absl::StatusOr<CheckpointInfo> Pin(const std::string& name, bool pinned);

  // For a leader that does not know us yet.
  std::vector<ResidentCheckpoint> Residents() const;
  // Wakes every watcher and refuses further waiting: the daemon stops.
  void Stop();

 private:
  struct Entry {
    CheckpointInfo info;
    IdentifiedRequest asked;
    std::vector<SourceFile> files;
    std::vector<uint64_t> request_digests;
    std::shared_ptr<ShardMemory> memory;
    std::shared_ptr<const Shard> shard;
    uint64_t generation = 0;
    bool exclusive = false;  // its one lease is EXCLUSIVE
    uint64_t version = 1;
    uint64_t last_used = 0;
    uint32_t watchers = 0;
    bool polled = false;
    std::optional<Clock::time_point> unwatched = {};  // since when, after somebody watched
    // By request, until when; unset: the load has not ended.
    std::map<std::string, std::optional<Clock::time_point>> kept_for;
    // ACTIVE, while a load of its name fills other ranks: how far that is, and when it ended last.
    struct Filling {
      Progress progress;
      uint64_t begun = 0;
    };
    std::optional<Filling> filling = {};
    uint64_t filled = 0;
    absl::Status unfilled = {};
    // LOADING: what it was refused here and waits for.
    struct Wanted {
      uint64_t bytes = 0;
      uint64_t order = 0;
    };
    std::optional<Wanted> wanted = {};
  };

  Entry* Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Entry* Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of a load that failed: statements and tables may be megabytes, and it stays listed.
  static void KeepWhatIsShown(Entry& entry);
  // Whether its memory is another entry's.
  static bool IsView(const Entry& entry) { return !entry.info.served_from.empty(); }
  // Of a view, the entry whose memory it is; else the entry itself.
  Entry& OwnerOf(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const Entry& OwnerOf(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What clients are told of it.
  CheckpointInfo InfoOf(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The same without what a view has of its owner: LOADING while other ranks are filled.
  static CheckpointInfo Shown(const Entry& entry);
  // Whether an EXCLUSIVE client can have it; `name` as that asked for it. Errors: those of Hold.
  static absl::Status CheckTakeable(const Entry& entry, const std::string& name);
  void Take(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Serves(const Entry& entry, const PrepareCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Room for one more view of `owner`: the least recently used one goes that nobody waits for.
  void BoundViews(const std::string& owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of one owner. Each costs a table, and lists that are told to the leader.
  static constexpr size_t kMostViews = 32;
  // A view is published here: whether that ends its load, or other ranks are filled yet.
  void NoteOthers(const PrepareCall& call, Entry& view) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a shard has of a load that was planned; its operations go.
  void NotePlan(const PrepareCall& call, Shard shard, Entry& entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An entry goes, and its views with it.
  void Erase(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of this entry and the views of it, one whose load has yet to end: until then its memory stays.
  // Null: none.
  const Entry* Unended(const Entry& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The moment at which its load was begun; unset where that has ended.
  static std::optional<uint64_t> LoadsSince(const Entry& entry);
  // A load that fills other ranks has ended.
  void EndFilling(Entry& entry, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From now on it is kept for those who waited, where its loads and those of its views have ended.
  void StartKeeping(Entry& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Not for the request `but_for`, where that is given.
  static bool Kept(const Entry& entry, std::optional<std::string_view> but_for = std::nullopt);
  void NoteAbort(const std::string& name, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whoever hears only now that his load leads to it finds it gone.
  void NoteGone(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Touch(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Nothing of it has begun: it waits for other ranks.
  static bool Gathers(const Entry& entry);
  // Waits for the statements of other ranks, and its own client has gone.
  static bool Abandoned(const Entry& entry, Clock::time_point now);
  // Nobody needs its memory: ACTIVE, neither leased nor pinned nor kept for a client.
  bool Evictable(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Memory of the least recently used evictable checkpoint; null when none.
  std::shared_ptr<ShardMemory> EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether evictions can give what the backend refused. `device_free`: of a device that
  // others use too.
  bool EvictionHelps(uint64_t bytes, uint64_t budget, std::optional<uint64_t> device_free) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Prune() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  HandleKind KindFor(const LoadRequest& request) const;
  absl::StatusOr<std::unique_ptr<Slab>> AllocateEvicting(uint64_t bytes, const PrepareCall& call);
  // What a refused load of that many bytes would have to get from others.
  struct Occupied {
    uint64_t leased = 0, pinned = 0, loading = 0;
    std::vector<std::pair<std::string, std::string>> by;  // names, and how they are held
  };
  Occupied FindOccupied() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status SayOccupied(const absl::Status& refused, const Occupied& occupied,
                           bool may_fit) const;
  // NO_MEMORY where a load that has waited for longer could not have its memory beside this.
  absl::Status CheckTurn(uint64_t bytes, const PrepareCall& call) const;
  // What was refused here, and for which loads: the oldest first.
  std::vector<std::pair<Entry::Wanted, std::string>> WaitingInOrder() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Evicted = std::vector<std::shared_ptr<ShardMemory>>;
  // Frees what MakeRoomForWaiting has evicted, of so many bytes.
  void Free(Evicted evicted, uint64_t bytes);
  // Evicts until that fits; the bytes of what was.
  uint64_t EvictUntil(uint64_t lacking, Evicted& evicted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteWanted(const PrepareCall& call, uint64_t bytes, const absl::Status& refused);

  MemoryBackend& backend_;
  Holders holders_ = [](const std::string&) { return std::vector<int32_t>(); };
  Later later_ = nullptr;
  std::chrono::nanoseconds kept_ = timing::kKeptForClient;
  const uint32_t rank_;
  const uint32_t world_size_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Loads that failed, or ended and were dropped, before who asked knew their names.
  struct Aborted {
    absl::Status why;
    uint64_t tick = 0;
  };
  std::map<std::string, Aborted> aborted_ ABSL_GUARDED_BY(mutex_);
  uint64_t ticks_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t going_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes that were evicted and are not free yet
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::Status CheckpointNotFound(const std::string& name);

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_CATALOG_H_
