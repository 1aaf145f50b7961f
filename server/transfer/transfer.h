// Fills the slabs of all ranks from the files of a source. This is the core of a load. It runs on
// the load worker and on reader threads of its own.
#ifndef CKPTD_SERVER_TRANSFER_TRANSFER_H_
#define CKPTD_SERVER_TRANSFER_TRANSFER_H_

#include <cstdint>
#include <set>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/plan/group_plan.h"
#include "common/plan/plan.h"
#include "server/memory/slab_view.h"
#include "server/transfer/step_user.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Reads each needed byte of the files once, in file order, in large blocks. Puts it into its
// final place in every target, or sends it there. Contiguous uncast runs are copied straight
// there. Every byte of every PlannedTensor is written. ZeroPadding, not this function, zeroes
// padding tails [bytes, padded_bytes). Errors name file and tensor; then the slabs' content is
// unspecified. Blocks until all its threads have ended. After an error that takes about one block
// each.
absl::StatusOr<TransferResult> RunTransfer(const CheckpointIndex& index,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress);

// The same for ranks of a group: `targets[i]` is `ranks[i]`. Copies are planned window by window,
// so memory does not grow with ranks times tensors.
absl::StatusOr<TransferResult> RunTransfer(const GroupPlan& group,
                                           std::span<const PlannedRank* const> ranks,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress);

// The same, step by step. `user` is told of each step. It has no digests, and one part: each
// reader does steps of its own.
absl::StatusOr<TransferResult> RunTransfer(const GroupPlan& group, const StepList& steps,
                                           std::span<const StepTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress, StepUser& user);

// Zeroes all bytes of a slab that no tensor's local bytes cover: gaps between tensors, padding
// tails, the end. So no byte of an earlier checkpoint stays visible. The rank that owns the slab
// runs it. It may run during the transfer if the slab is written by address. If the slab is
// staged it must run before, because it may overwrite other bytes and padding is sent with the
// tensors. Errors: StagedMemory::Zero's.
absl::Status ZeroPadding(const RankPlan& plan, const SlabView& slab);
// The tensors (numbers in the plan) after which some of those bytes are not zero. Errors: those
// of reading staged memory.
absl::StatusOr<std::set<uint32_t>> DirtyPadding(const RankPlan& plan, const SlabView& slab);

// Copies the first `bytes` of a slab to the same places of another one, on `threads` threads (0:
// one per core). Both must be that long. Errors: StagedMemory's, NO_MEMORY without threads. The
// target's content is then unspecified.
absl::Status CopySlab(const SlabView& from, const SlabView& to, uint64_t bytes, unsigned threads);

// Digest (as TensorDigest of common/base/digest.h) of bytes that may cross segments of a slab.
// Errors: those of reading staged memory.
absl::StatusOr<uint64_t> DigestInSlab(const SlabView& slab, uint64_t offset, uint64_t bytes);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_H_
