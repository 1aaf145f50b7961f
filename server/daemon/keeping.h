// Keeps the checkpoints and leases of this daemon in a DescriptorStore, and restores those that an
// earlier process of this rank has left there.
#ifndef CKPTD_SERVER_DAEMON_KEEPING_H_
#define CKPTD_SERVER_DAEMON_KEEPING_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "ckptd/v1/keeper.pb.h"
#include "common/base/mutex.h"
#include "server/catalog/shard_keeper.h"
#include "server/daemon/memory_tier.h"
#include "server/keeper/descriptor_store.h"
#include "server/memory/memory.h"
#include "server/rpc/fd_server.h"

namespace ckptd {

// Thread-safe. The daemon owns it; it outlives the catalog and its memory.
class Keeping final : public ShardKeeper {
 public:
  // Looks at what is there. `threads` check restored bytes.
  Keeping(std::unique_ptr<DescriptorStore> store, uint32_t rank, uint32_t world_size,
          unsigned threads);

  // The memory that Restore would need.
  KeptBytes FoundBytes() const;
  // For Restore. `memory` outlives this.
  void SetMemory(MemoryBackend& memory) { memory_ = &memory; }

  void Keep(const KeptCheckpoint& checkpoint, const std::shared_ptr<ShardMemory>& memory) override;
  void KeepLease(const LeaseInfo& lease, int connection) override;
  void DropLease(const std::string& name) override;
  void Restore(Catalog& catalog, LeaseTable& leases) override;
  KeeperState state() const override;

  // The connections of restored leases. Once.
  std::vector<FdServer::Adopted> TakeConnections() { return std::move(connections_); }

  // The daemon ends, and its successor is to have everything. First leases stay, whose connections
  // are about to be closed here; then, once nobody can be given memory any more, checkpoints, too.
  void LeaveLeases();
  void LeaveAll();

 private:
  struct Left {
    bool leases = false;
    bool all = false;
  };
  // An entry that was there at the start.
  struct Found {
    std::string name;
    std::vector<UniqueFd> fds;
    absl::Status read = {};  // whether its record could be read
    v1::KeptCheckpoint checkpoint = {};
    v1::KeptLease lease = {};
  };
  absl::Status RestoreCheckpoint(Found& found, Catalog& catalog);
  absl::Status RestoreLease(Found& found, LeaseTable& leases);
  // Each tensor must have its digest, and padding must be zero.
  absl::Status Check(const Shard& shard, const SlabView& view) const;
  void Drop(const std::string& name, const absl::Status& why);
  void Put(const std::string& name, std::vector<UniqueFd> fds);
  void Remove(const std::string& name);

  const std::unique_ptr<DescriptorStore> store_;
  MemoryBackend* memory_ = nullptr;
  const uint32_t rank_;
  const uint32_t world_size_;
  const unsigned threads_;
  std::vector<Found> found_;  // until Restore
  std::vector<FdServer::Adopted> connections_;
  mutable Mutex mutex_;
  std::set<std::string> kept_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> dropped_ ABSL_GUARDED_BY(mutex_);
  Left left_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_DAEMON_KEEPING_H_
