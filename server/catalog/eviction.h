// Memory for shards: allocates it, and evicts unleased, unpinned checkpoints for it, least recently
// used first. Loads that were refused memory wait for it in their order. Thread-safe.
#ifndef CKPTD_SERVER_CATALOG_EVICTION_H_
#define CKPTD_SERVER_CATALOG_EVICTION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/catalog/catalog_table.h"
#include "server/memory/memory.h"
#include "server/protocol/daemon_observer.h"

namespace ckptd {

// The kind in which memory of `backend` is handed out for that request.
HandleKind KindFor(const MemoryBackend& backend, const LoadRequest& request);

class Eviction {
 public:
  // Both outlive it.
  Eviction(CatalogTable& table, MemoryBackend& backend) : table_(table), backend_(backend) {}

  // FailedPrecondition HANDLE_KIND where this memory cannot be handed out as the request
  // asks.
  absl::Status CheckKind(const LoadRequest& request) const;
  // Memory for a LOADING checkpoint; evicts when the budget asks for it and that can help. Errors:
  // NO_MEMORY with the numbers, those of CheckKind, CHECKPOINT_NOT_FOUND when the load was aborted
  // meanwhile.
  absl::StatusOr<std::shared_ptr<ShardMemory>> Allocate(const PrepareCall& call, Shard shard);
  // Evicts a checkpoint for `bytes` that the backend has `refused`: the caller tries again.
  // Errors: `refused`, where that helps nothing.
  absl::Status MakeRoom(uint64_t bytes, const absl::Status& refused);
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
  // Set once, before the catalog is used; outlives it. Null: none.
  void SetObserver(DaemonObserver* observer) { observer_ = observer; }

 private:
  // Nobody needs its memory: ACTIVE, neither leased nor pinned nor kept for a client.
  bool Evictable(const CatalogEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  // Memory of the least recently used evictable checkpoint; null when none.
  std::shared_ptr<ShardMemory> EvictOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  // Whether evictions can give what the backend refused. `device_free`: of a device that
  // others use too.
  bool EvictionHelps(uint64_t bytes, uint64_t budget, std::optional<uint64_t> device_free) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  absl::StatusOr<std::unique_ptr<Slab>> AllocateEvicting(uint64_t bytes, const PrepareCall& call);
  // What a refused load of that many bytes would have to get from others.
  struct Occupied {
    uint64_t leased = 0, pinned = 0, loading = 0;
    std::vector<std::pair<std::string, std::string>> by;  // names, and how they are held
  };
  Occupied FindOccupied() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  absl::Status SayOccupied(const absl::Status& refused, const Occupied& occupied,
                           bool may_fit) const;
  // NO_MEMORY where a load that has waited for longer could not have its memory beside this.
  absl::Status CheckTurn(uint64_t bytes, const PrepareCall& call) const;
  void NoteWanted(const PrepareCall& call, uint64_t bytes, const absl::Status& refused);
  // What was refused here, and for which loads: the oldest first.
  std::vector<std::pair<CatalogEntry::Wanted, std::string>> WaitingInOrder() const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);
  using Evicted = std::vector<std::shared_ptr<ShardMemory>>;
  // Frees what MakeRoomForWaiting has evicted, of so many bytes.
  void Free(Evicted evicted, uint64_t bytes);
  // Evicts until that fits; the bytes of what was.
  uint64_t EvictUntil(uint64_t lacking, Evicted& evicted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);

  CatalogTable& table_;
  MemoryBackend& backend_;
  Holders holders_ = [](const std::string&) { return std::vector<int32_t>(); };
  Later later_ = nullptr;
  DaemonObserver* observer_ = nullptr;
  // Bytes that were evicted and are not free yet.
  uint64_t going_ ABSL_GUARDED_BY(table_.mutex) = 0;
  // What was evicted and is not free yet, by name: its lease is just ending, somebody verifies it,
  // or Later has yet to come.
  std::vector<std::pair<std::string, std::weak_ptr<const ShardMemory>>> leaving_
      ABSL_GUARDED_BY(table_.mutex);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_EVICTION_H_
