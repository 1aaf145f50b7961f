// A load that this rank has prepared and whose bytes readers elsewhere may send.
#ifndef CKPTD_SERVER_LOAD_PREPARED_LOAD_H_
#define CKPTD_SERVER_LOAD_PREPARED_LOAD_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "server/catalog/shard_memory.h"
#include "server/protocol/domain.h"
#include "server/transfer/frame_receiver.h"

namespace ckptd {

// Thread-safe. Keeps neither the memory nor what fills it: once the load has failed, frames are
// refused, and both are free for others.
class PreparedLoad {
 public:
  // `shard` says what describes the slab, as the catalog keeps it: without copies.
  PreparedLoad(const PrepareCall& call, std::shared_ptr<const Shard> shard,
               std::weak_ptr<ShardMemory> memory);

  uint64_t epoch() const { return epoch_; }
  const LoadRequest& request() const { return request_; }
  const CheckpointIndex& index() const { return *index_; }
  // Without copies, which take more memory than all the rest and are mostly needed by no member.
  const RankPlan& plan() const { return shard_->plan; }
  // The same with its copies, planned anew. Errors: those of PlanRank.
  absl::StatusOr<RankPlan> PlanCopies() const;
  // No frame can come any more: the load is over.
  bool over() const { return memory_.expired(); }

  // As FrameReceiver::Take; Aborted EPOCH_CHANGED when the load is over, or Finish has begun.
  absl::Status Take(const FrameHeader& header, std::span<const std::span<const std::byte>> pieces);

  // Bytes of tensors that a communicator brought.
  void NoteCarried(uint64_t bytes);

  // Compares what came with what readers say they placed and sent, and gives the
  // digests (none when the load wants none). Errors: Internal COVERAGE, the first
  // one of Take, Aborted EPOCH_CHANGED when the load is over.
  absl::StatusOr<std::vector<uint64_t>> Finish(const CommitCall& call);

 private:
  absl::StatusOr<std::shared_ptr<FrameReceiver>> Receiver(ShardMemory& memory);
  // `receiver`: null where no frame came.
  absl::StatusOr<std::vector<uint64_t>> DigestsOf(const CommitCall& call, const ShardMemory& memory,
                                                  const FrameReceiver* receiver) const;

  const uint64_t epoch_;
  const std::string name_;
  const LoadRequest request_;
  const std::shared_ptr<const CheckpointIndex> index_;
  const std::shared_ptr<const Shard> shard_;
  const std::weak_ptr<ShardMemory> memory_;
  Mutex mutex_;
  std::weak_ptr<FrameReceiver> receiver_ ABSL_GUARDED_BY(mutex_);  // made for the first frame
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t carried_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_LOAD_PREPARED_LOAD_H_
