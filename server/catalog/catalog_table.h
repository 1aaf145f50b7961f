// What the parts of the catalog share: its entries, and the mutex that guards them. Private to this
// folder.
#ifndef CKPTD_SERVER_CATALOG_CATALOG_TABLE_H_
#define CKPTD_SERVER_CATALOG_CATALOG_TABLE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/catalog/shard_memory.h"
#include "server/catalog/tombstones.h"
#include "server/protocol/domain.h"
#include "server/protocol/timing.h"

namespace ckptd {

// One checkpoint of this rank. Times without a clock are values of CatalogTable::ticks.
struct CatalogEntry {
  CheckpointInfo info;
  IdentifiedRequest asked;
  std::vector<SourceFile> files;
  std::vector<uint64_t> request_digests;
  std::shared_ptr<ShardMemory> memory;
  std::shared_ptr<const Shard> shard;
  uint64_t generation = 0;  // when it was begun
  bool exclusive = false;   // its one lease is EXCLUSIVE
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
  // LOADING: the memory that it was refused here and waits for.
  struct Wanted {
    uint64_t bytes = 0;
    uint64_t order = 0;
  };
  std::optional<Wanted> wanted = {};

  // Whether its memory is another entry's.
  bool IsView() const { return !info.served_from.empty(); }
  // Whether nothing of it has begun: it waits for other ranks.
  bool Gathers() const;
  // When its load was begun; unset where that has ended.
  std::optional<uint64_t> LoadsSince() const;
  // Whether a client is to acquire it; the request `but_for` does not count, where that is given.
  bool Kept(std::optional<std::string_view> but_for = std::nullopt) const;
  // Drops the layouts and tables of a load that failed: they may be megabytes, and it stays listed.
  void KeepWhatIsShown();
  // Notes what `asked` says of it.
  void NoteRequest();
  // Notes what follows from the shard and `files`.
  void NoteShard(std::shared_ptr<const Shard> whole);
  // It was planned: keeps all but the operations.
  void NotePlan(const PrepareCall& call, Shard planned);
};

struct CatalogTable {
  CatalogTable(uint32_t own_rank, uint32_t ranks) : rank(own_rank), world_size(ranks) {}

  CatalogEntry* Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  const CatalogEntry* Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // For a view, the entry whose memory it is; else the entry itself.
  CatalogEntry& OwnerOf(CatalogEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  const CatalogEntry& OwnerOf(const CatalogEntry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // What clients are told of it: LOADING while other ranks are filled.
  CheckpointInfo InfoOf(const CatalogEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // It has changed, or was used.
  void BumpVersion(CatalogEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // The entry goes, and its views with it. Clients that learn its name only now find it gone.
  void Erase(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // This entry or a view of it whose load has yet to end: until then its memory stays. Null: none.
  const CatalogEntry* Unended(const CatalogEntry& owner) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // From now on it is kept for clients that waited, where its loads and its views' have ended.
  void StartKeeping(CatalogEntry& owner) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const uint32_t rank;
  const uint32_t world_size;
  // How long a shard is kept for a client. Set before the catalog is used.
  std::chrono::nanoseconds kept = timing::kKeptForClient;
  mutable Mutex mutex;
  mutable CondVar changed;
  std::map<std::string, CatalogEntry> entries ABSL_GUARDED_BY(mutex);
  Tombstones tombstones ABSL_GUARDED_BY(mutex);
  uint64_t ticks ABSL_GUARDED_BY(mutex) = 0;
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

// Errors that several parts tell.
absl::Status CheckpointNotFound(const std::string& name);
// Why a checkpoint in this state is not there for `doing`, "unloading" it for example.
// `otherwise`: what can be done about one that is LOADING, but wait.
absl::Status NotActive(std::string_view doing, const CheckpointInfo& info,
                       std::string_view otherwise = "");
// "1 lease is" or "2 leases are".
std::string LeasesText(uint32_t count);

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_CATALOG_TABLE_H_
