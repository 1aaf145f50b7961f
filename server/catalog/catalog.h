// The checkpoints of one daemon (one rank): their states, memory and leases'
// counts. LOADING -> ACTIVE | FAILED, ACTIVE -> TAKEN. The catalog begins, publishes and ends
// them; its parts watch them, lend them and find memory for them. Thread-safe: all share the mutex
// of CatalogTable, and no callback and no slow call is made under it.
#ifndef CKPTD_SERVER_CATALOG_CATALOG_H_
#define CKPTD_SERVER_CATALOG_CATALOG_H_

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/catalog/catalog_table.h"
#include "server/catalog/eviction.h"
#include "server/catalog/shard_keeper.h"
#include "server/catalog/shard_leases.h"
#include "server/catalog/shard_memory.h"
#include "server/catalog/watchers.h"
#include "server/memory/memory.h"
#include "server/protocol/domain.h"

namespace ckptd {

class Catalog {
 public:
  // `backend` outlives the catalog and every ShardMemory it gives out.
  Catalog(MemoryBackend& backend, uint32_t rank, uint32_t world_size);

  Watchers& watchers() { return watchers_; }
  const Watchers& watchers() const { return watchers_; }
  ShardLeases& leases() { return leases_; }
  const ShardLeases& leases() const { return leases_; }
  Eviction& eviction() { return eviction_; }
  // Gets what becomes ACTIVE. Set before the catalog is used; outlives it. Null: nothing is kept.
  void SetKeeper(ShardKeeper* keeper) { keeper_ = keeper; }

  // --- to find a checkpoint ---
  // A LOADING or ACTIVE checkpoint that answers a request, with the files it
  // was read from (empty while LOADING before they are known).
  struct Match {
    std::string name;
    bool active = false;
    std::vector<SourceFile> files;
    bool gathering = false;  // it waits for the group
    // The request that it was loaded for. Digests count as asked for if it has them.
    IdentifiedRequest asked = {};
  };
  std::optional<Match> FindMatch(const IdentifiedRequest& asked) const;
  // Fields in which the newest resident checkpoint of the same source differs;
  // empty when there is none.
  std::vector<std::string> NearMiss(const LoadRequest& request) const;
  absl::StatusOr<CheckpointInfo> Get(const std::string& name) const;
  // Newest first. Those with memory of their own; a guest's: all that were loaded for its user.
  std::vector<CheckpointInfo> List(const std::optional<Caller>& guest = std::nullopt) const;
  // Names of the checkpoints that are ACTIVE here.
  std::set<std::string> ActiveNames() const;
  // True when the shard of this checkpoint is here, with that plan.
  bool HasActive(const std::string& name, uint64_t rank_digest) const;
  // For a leader that does not know us yet.
  std::vector<ResidentCheckpoint> Residents() const;

  // --- the life of a checkpoint ---
  // A moment of this catalog, for Begin.
  uint64_t Tick() const;
  static constexpr uint64_t kNow = UINT64_MAX;
  // Makes a LOADING entry; nothing when one of that name is LOADING or ACTIVE. A
  // load that has failed here after the moment `since` stays FAILED: its end may
  // overtake the answer that tells us its name.
  void Begin(const std::string& name, const IdentifiedRequest& asked, uint64_t since = kNow);
  void UpdateProgress(const std::string& name, const Progress& progress);
  std::shared_ptr<ShardMemory> LoadingMemory(const std::string& name) const;
  std::shared_ptr<const Shard> LoadingShard(const std::string& name) const;
  // LOADING -> ACTIVE. Seals, unless the load is meant to be EXCLUSIVE.
  absl::Status Publish(const CommitCall& call);
  // Makes an ACTIVE entry of what an earlier process has left.
  void Restore(KeptCheckpoint kept, std::shared_ptr<ShardMemory> memory);
  // LOADING -> FAILED. An ACTIVE shard is whole, whatever became of other ranks.
  // A name that is not known yet is remembered for Begin.
  void Fail(const std::string& name, const absl::Status& why);
  // Fails all loads that were begun up to the moment `since`.
  void FailAllLoading(const absl::Status& why, uint64_t since = kNow);
  // Fails the loads that were begun up to the moment `since` and are not in `known`: the leader no
  // longer runs them, and will not end them either.
  void FailForgotten(const std::set<std::string>& known, uint64_t since);
  // Bytes given back. `idle`: LEASED also where it is kept for a client (ShardLeases::KeepFor).
  // Errors: CHECKPOINT_NOT_FOUND, LEASED, NOT_ACTIVE.
  absl::StatusOr<uint64_t> Unload(const std::string& name, bool force, bool idle = false);
  absl::StatusOr<CheckpointInfo> Pin(const std::string& name, bool pinned);
  // The load that has yet to end and needs the memory of `name`: its own, or that of another view
  // of it. Empty: none.
  std::string LoadThatNeeds(const std::string& name) const;
  // Wakes every watcher and refuses further waiting: the daemon stops.
  void Stop();

  // --- views ---
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

  // --- shards of other ranks ---
  // One that is ACTIVE here is to be filled on ranks that lack it: until that load has ended,
  // clients see it as LOADING. Nothing where it has ended after the moment `since`.
  void BeginFilling(const std::string& name, uint64_t since);
  // Every rank holds its shard. False where it is not ACTIVE here.
  bool Complete(const std::string& name);
  // Notes on how many ranks the shard is resident, as the leader has counted.
  void NoteResidence(const std::string& name, uint32_t ranks);

 private:
  bool Serves(const CatalogEntry& entry, const PrepareCall& call) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  // Room for one more view of `owner`: the least recently used one goes that nobody waits for.
  void BoundViews(const std::string& owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  // The most views of one owner. Each costs a table, and lists that are told to the leader.
  static constexpr size_t kMostViews = 32;
  // A view is published here. Notes whether that ends its load, or other ranks are filled yet.
  void NoteOthers(const PrepareCall& call, CatalogEntry& view)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  // A load that fills other ranks has ended.
  void EndFilling(CatalogEntry& entry, const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  // Unload, which frees `freed` without the lock.
  absl::StatusOr<uint64_t> TakeMemory(const std::string& name, bool force, bool idle,
                                      std::shared_ptr<ShardMemory>& freed);
  // Of an entry that is, or becomes, ACTIVE.
  static KeptCheckpoint WhatIsKept(const CatalogEntry& entry);
  // Drops the oldest ended entries beyond those that are kept for late clients.
  void Prune() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);

  MemoryBackend& backend_;
  CatalogTable table_;
  Watchers watchers_;
  ShardLeases leases_;
  Eviction eviction_;
  ShardKeeper* keeper_ = nullptr;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_CATALOG_H_
