// Leases: who holds the shard of which checkpoint. A lease begins as a one-time
// token; showing it on the fd socket binds the lease to that connection, and the
// lease ends with it. Thread-safe: one mutex, never held while the catalog is
// called.
#ifndef CKPTD_SERVER_CATALOG_LEASE_TABLE_H_
#define CKPTD_SERVER_CATALOG_LEASE_TABLE_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/catalog/catalog.h"
#include "server/protocol/daemon_observer.h"

namespace ckptd {

struct LeaseInfo {
  std::string name;        // checkpoints/{id}/leases/{lease}
  std::string checkpoint;  // checkpoints/{id}
  AttachMode mode = AttachMode::kShared;
  int32_t pid = 0;         // of the client, once connected; 0: in another PID namespace
  uint32_t uid = 0;
  bool connected = false;
  std::chrono::system_clock::time_point created;
};

class LeaseTable {
 public:
  static constexpr size_t kTokenLength = 32;  // hex digits

  explicit LeaseTable(Catalog& catalog) : catalog_(catalog) {}

  struct Ticket {
    std::string lease;
    std::string token;
    ShardLeases::Held held;
  };
  // `request_id`: as ShardLeases::Hold takes it. Errors: those of ShardLeases::Hold.
  absl::StatusOr<Ticket> Open(const std::string& checkpoint, AttachMode mode,
                              const std::string& request_id = "");

  struct Redeemed {
    std::string lease;
    AttachMode mode = AttachMode::kShared;
    SlabHandle handle;
  };
  // Trades a token, once, for descriptors. Errors: Unauthenticated TOKEN_INVALID
  // (unknown, used or expired).
  absl::StatusOr<Redeemed> Redeem(const std::string& token, int32_t pid, uint32_t uid);
  // `connection` is the lease, whose descriptors are about to leave. A later process has it back.
  void Keep(const std::string& lease, int connection);
  // A lease of an earlier process; `info` has all but `connected`. Errors: those of
  // ShardLeases::Hold.
  absl::Status Restore(LeaseInfo info);
  // See Catalog::SetKeeper.
  void SetKeeper(ShardKeeper* keeper) { keeper_ = keeper; }
  // Set before the table is used; outlives it. Null: none.
  void SetObserver(DaemonObserver* observer) { observer_ = observer; }
  // Descriptors have left: an EXCLUSIVE client owns the memory from now on.
  void HandedOver(const std::string& lease);
  // The connection closed. Idempotent.
  void End(const std::string& lease);
  // Its client will not show the token. OK where it has ended; FailedPrecondition LEASED where a
  // connection holds it: its client may still use the memory.
  absl::Status Release(const std::string& lease);
  // Ends leases whose token was not shown in time.
  void ExpireTokens();

  std::vector<LeaseInfo> List() const;
  // Processes that hold leases of a checkpoint, as far as they are known.
  std::vector<int32_t> HoldersOf(const std::string& checkpoint) const;
  bool Empty() const;
  // Waits until no lease is left; the number left at the deadline.
  // Or until Stop.
  size_t WaitUntilEmpty(Deadline deadline) const;
  // Ends all waiting, now and later: the daemon stops.
  void Stop();

 private:
  struct Lease {
    LeaseInfo info;
    std::string token;  // empty once shown
    Clock::time_point opened = Clock::now();
    Clock::time_point token_expiry;
    std::shared_ptr<ShardMemory> memory;
    uint64_t generation = 0;
  };

  Catalog& catalog_;
  ShardKeeper* keeper_ = nullptr;
  DaemonObserver* observer_ = nullptr;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::map<std::string, Lease> leases_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, std::string> tokens_ ABSL_GUARDED_BY(mutex_);  // token -> lease
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_LEASE_TABLE_H_
