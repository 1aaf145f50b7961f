// Seam: what outlives this process, so that its successor has it again. Implemented by the daemon
// (server/daemon/keeping.h). Thread-safe. Calls may take milliseconds, so none is made under a lock
// that others wait for; what cannot be kept is logged and no error.
#ifndef CKPTD_SERVER_CATALOG_SHARD_KEEPER_H_
#define CKPTD_SERVER_CATALOG_SHARD_KEEPER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/catalog/shard_memory.h"
#include "server/protocol/domain.h"

namespace ckptd {

class Catalog;
class LeaseTable;
struct LeaseInfo;

// What is known of an ACTIVE checkpoint, besides its memory.
struct KeptCheckpoint {
  CheckpointInfo info;  // what the request and the plan do not say
  LoadRequest request;
  std::vector<SourceFile> files;
  std::vector<uint64_t> request_digests;
  std::shared_ptr<const Shard> shard;
};

struct KeeperState {
  std::string endpoint;  // empty: nothing is kept
  bool connected = false;
  uint32_t checkpoints = 0;
  uint32_t leases = 0;
  std::vector<std::string> dropped;  // what was there and was refused, with the reason
};

class ShardKeeper {
 public:
  virtual ~ShardKeeper() = default;
  // All its bytes are there, and nobody writes them any more. `memory` is kept until it calls back
  // (ShardMemory::SetBeforeReuse). Again: replaces what was kept.
  virtual void Keep(const KeptCheckpoint& checkpoint, const std::shared_ptr<ShardMemory>& memory) = 0;
  // `connection` is that lease. Called before its client has the memory.
  virtual void KeepLease(const LeaseInfo& lease, int connection) = 0;
  virtual void DropLease(const std::string& name) = 0;
  // Brings what an earlier process has left into both, which nobody uses yet.
  virtual void Restore(Catalog& catalog, LeaseTable& leases) = 0;
  virtual KeeperState state() const = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_SHARD_KEEPER_H_
