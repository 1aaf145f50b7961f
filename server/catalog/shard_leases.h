// Lends ACTIVE shards: counts their leases, and keeps them for clients that are to come. Thread-safe.
// The leases themselves, with their tokens and connections, are LeaseTable's.
#ifndef CKPTD_SERVER_CATALOG_SHARD_LEASES_H_
#define CKPTD_SERVER_CATALOG_SHARD_LEASES_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/catalog/catalog_table.h"

namespace ckptd {

class ShardLeases {
 public:
  explicit ShardLeases(CatalogTable& table) : table_(table) {}

  struct Held {
    std::shared_ptr<ShardMemory> memory;
    std::shared_ptr<const Shard> shard;
    // Of this load: one of the same name that follows it has another.
    uint64_t generation = 0;
    std::string name = {};  // that the lease counts on: of a view, its owner
    // The table of all that lies in the memory: of a view, its owner's.
    std::shared_ptr<const Shard> whole = {};
  };
  // Counts one lease on an ACTIVE checkpoint. `request_id`: of the load that led here, as KeepFor
  // was told. Errors: CHECKPOINT_NOT_FOUND, NOT_ACTIVE, LOAD_FAILED (with the load's own reason in
  // the sentence), TAKEN, LEASED beside an EXCLUSIVE lease; LEASED and EXCLUSIVE_NEEDS_COPY for an
  // EXCLUSIVE one.
  absl::StatusOr<Held> Hold(const std::string& name, AttachMode mode,
                            const std::string& request_id = "");
  void Release(const std::string& name, uint64_t generation);
  // The shard without a lease, for verifying it.
  absl::StatusOr<Held> Look(const std::string& name) const;
  // Its table; also of a shard that was TAKEN meanwhile.
  absl::StatusOr<std::shared_ptr<const Shard>> Table(const std::string& name) const;
  // ACTIVE -> TAKEN: a client owns the memory.
  void MarkTaken(const std::string& name, uint64_t generation);

  // The client of that request waits for the checkpoint, and will acquire it: it is not evicted
  // until then, nor for timing::kKeptForClient after it has become ACTIVE. Beyond kMostKept
  // requests, the first ones count. False where there is no such checkpoint.
  bool KeepFor(const std::string& name, const std::string& request_id);
  // That client has gone.
  void KeepNoMore(const std::string& name, const std::string& request_id);
  // Instead of timing::kKeptForClient. Set before the catalog is used.
  void SetKept(std::chrono::nanoseconds kept) { table_.kept = kept; }
  static constexpr size_t kMostKept = 1024;

 private:
  void Take(CatalogEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_.mutex);

  CatalogTable& table_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_SHARD_LEASES_H_
