// Pristine copies, in host memory, of shards whose device memory clients take over: what
// a trainer took comes back over the GPU's own link, without storage.
#ifndef CKPTD_SERVER_CATALOG_HOST_TIER_H_
#define CKPTD_SERVER_CATALOG_HOST_TIER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/checkpoint/index.h"
#include "server/memory/memory.h"

namespace ckptd {

// Thread-safe.
class HostTier {
 public:
  // What makes two shards equal: the same plan of one rank, of the same files.
  struct Key {
    uint64_t rank_digest = 0;
    std::vector<SourceFile> files;

    bool operator==(const Key& other) const {
      return rank_digest == other.rank_digest && files == other.files;
    }
  };

  // Copies lie in `memory`, whose budget is all they take; it outlives this. Null: none
  // are kept. `threads` copy at a time.
  HostTier(SlabAllocator* memory, unsigned threads) : memory_(memory), threads_(threads) {}

  bool enabled() const { return memory_ != nullptr; }

  // Copies the first `bytes` of a shard that is complete and that no client has seen.
  // Older copies make room, least recently used first. A copy that cannot be made is
  // logged and no error: storage still has it.
  void Keep(const std::string& checkpoint, const Key& key, const SlabView& shard, uint64_t bytes,
            const std::vector<uint64_t>& digests);

  // Fills `shard`, of that key, if there is a copy; with `digests` only from one that has
  // them. `restored` tells; false and OK when there is none. Errors: CopySlab's.
  struct Restored {
    bool done = false;
    std::vector<uint64_t> digests;
  };
  absl::StatusOr<Restored> Restore(const Key& key, bool digests, const SlabView& shard);

  // Gives up the copies of a checkpoint: their bytes.
  uint64_t Drop(const std::string& checkpoint);

  uint64_t budget() const { return memory_ == nullptr ? 0 : memory_->Usage().budget; }
  uint64_t used() const { return memory_ == nullptr ? 0 : memory_->Usage().used; }

 private:
  struct Copy {
    std::string checkpoint;  // that it was made from
    Key key;
    uint64_t bytes = 0;
    std::vector<uint64_t> digests;
    std::unique_ptr<Slab> slab;
  };
  std::shared_ptr<Copy> Find(const Key& key, bool digests);
  std::unique_ptr<Slab> MakeRoom(uint64_t bytes);
  bool DropOldest();

  SlabAllocator* const memory_;
  const unsigned threads_;
  Mutex mutex_;
  // Least recently used first. Who copies holds one besides.
  std::vector<std::shared_ptr<Copy>> copies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_CATALOG_HOST_TIER_H_
