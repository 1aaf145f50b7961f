// Keeps which digest blocks of which tensors are filled, and the blocks' digests.
#ifndef CKPTD_SERVER_TRANSFER_DIGEST_BOARD_H_
#define CKPTD_SERVER_TRANSFER_DIGEST_BOARD_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/transfer/schedule.h"
#include "server/transfer/slab_map.h"

namespace ckptd {

// Blocks are kDigestBlockBytes of local bytes (the last one of a tensor is shorter). A thread
// that places a whole block computes its digest and calls Store. If several copies share a block,
// each calls Fill, and the last one computes the digest. Each TransferWindow owns one.
// Thread-safe. The targets and maps must outlive it.
class DigestBoard {
 public:
  DigestBoard(std::span<const TransferTarget> targets, std::span<const SlabMap> slabs);

  void Store(const Destination& where, uint64_t block, uint64_t digest);

  // Says that `bytes` more of the block are in place, and fenced. The call that completes the
  // block hashes it from the slab. In a staged slab that waits for Combine. False if the block
  // has fewer bytes than came.
  bool Fill(const Destination& where, uint64_t block, uint64_t bytes);

  // Whether Combine will have to read from staged slabs.
  bool HasUnread() {
    MutexLock lock(mutex_);
    return !unread_.empty();
  }

  // Digests of all tensors, per target. Call it when all threads are done and everything staged
  // is in place. Errors: Internal COVERAGE naming the tensor if a block is incomplete, and those
  // of reading staged memory.
  absl::StatusOr<std::vector<std::vector<uint64_t>>> Combine();

 private:
  struct Block {
    std::atomic<uint64_t> filled = 0;
    // Written by the thread that completes the block. It is atomic because a wrong plan might
    // fill a block twice.
    std::atomic<uint64_t> digest = 0;
  };

  struct Unread {
    Destination where;
    uint64_t block = 0;
  };

  const PlannedTensor& tensor(const Destination& where) const;
  absl::Status ReadStaged();
  size_t BlockIndex(const Destination& where, uint64_t block) const;

  std::span<const TransferTarget> targets_;
  std::span<const SlabMap> slabs_;
  std::vector<std::vector<size_t>> first_block_;  // per target, per tensor
  std::vector<Block> blocks_;
  Mutex mutex_;
  std::vector<Unread> unread_ ABSL_GUARDED_BY(mutex_);  // complete blocks in staged slabs
};

// Bytes of block number `block` of a tensor of `tensor_bytes`.
uint64_t BlockBytes(uint64_t tensor_bytes, uint64_t block);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_DIGEST_BOARD_H_
