#include "server/catalog/host_tier.h"

#include <algorithm>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status.h"
#include "server/transfer/transfer.h"

namespace ckptd {

std::shared_ptr<HostTier::Copy> HostTier::Find(const Key& key, bool digests) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(copies_.begin(), copies_.end(), [&](const auto& copy) {
    return copy->key == key && (!digests || !copy->digests.empty());
  });
  if (found == copies_.end()) return nullptr;
  std::rotate(found, found + 1, copies_.end());
  return copies_.back();
}

bool HostTier::DropOldest() {
  std::shared_ptr<Copy> oldest;  // given back outside of the lock
  MutexLock lock(mutex_);
  if (copies_.empty()) return false;
  oldest = std::move(copies_.front());
  copies_.erase(copies_.begin());
  return true;
}

std::unique_ptr<Slab> HostTier::MakeRoom(uint64_t bytes) {
  if (bytes > memory_->Usage().budget) return nullptr;
  while (true) {
    auto slab = memory_->Allocate(bytes, AttachMode::kShared);
    if (slab.ok()) return *std::move(slab);
    if (!DropOldest()) {
      Log(LogLevel::kWarn, "host tier: {}", MessageOf(slab.status()));
      return nullptr;
    }
  }
}

void HostTier::Keep(const std::string& checkpoint, const Key& key, const SlabView& shard,
                    uint64_t bytes, const std::vector<uint64_t>& digests) {
  if (!enabled() || shard.empty() || Find(key, !digests.empty()) != nullptr) return;
  auto copy = std::make_shared<Copy>(Copy{checkpoint, key, bytes, digests, MakeRoom(bytes)});
  if (copy->slab == nullptr) {
    Log(LogLevel::kWarn,
        "host tier: {} is not kept, its {} bytes do not fit into the {} of --host-tier", checkpoint,
        bytes, budget());
    return;
  }
  const absl::Status copied = CopySlab(shard, copy->slab->view(), bytes, threads_);
  if (!copied.ok()) {
    Log(LogLevel::kWarn, "host tier: {} is not kept: {}", checkpoint, MessageOf(copied));
    return;
  }
  MutexLock lock(mutex_);
  copies_.push_back(std::move(copy));
}

absl::StatusOr<HostTier::Restored> HostTier::Restore(const Key& key, bool digests,
                                                     const SlabView& shard) {
  if (!enabled() || shard.empty()) return Restored();
  const std::shared_ptr<Copy> copy = Find(key, digests);
  if (copy == nullptr) return Restored();
  CKPTD_RETURN_IF_ERROR(
      WithContext(CopySlab(copy->slab->view(), shard, copy->bytes, threads_),
                  "restoring the shard of " + copy->checkpoint + " from the host tier"));
  return Restored{true, copy->digests};
}

uint64_t HostTier::Drop(const std::string& checkpoint) {
  std::vector<std::shared_ptr<Copy>> dropped;  // given back outside of the lock
  MutexLock lock(mutex_);
  const auto kept = std::stable_partition(
      copies_.begin(), copies_.end(),
      [&](const auto& copy) { return copy->checkpoint != checkpoint; });
  uint64_t bytes = 0;
  for (auto it = kept; it != copies_.end(); ++it) {
    bytes += (*it)->bytes;
    dropped.push_back(std::move(*it));
  }
  copies_.erase(kept, copies_.end());
  return bytes;
}

}  // namespace ckptd
