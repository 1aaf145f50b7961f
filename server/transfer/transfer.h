// Read -> place: fills the slabs of all ranks from the files of a source. The
// heart of a load. Runs on the load worker and its reader threads.
#ifndef CKPTD_SERVER_TRANSFER_TRANSFER_H_
#define CKPTD_SERVER_TRANSFER_TRANSFER_H_

#include <cstdint>
#include <set>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/group_plan.h"
#include "common/plan/plan.h"
#include "common/source/index.h"
#include "server/memory/slab_view.h"
#include "server/transfer/step_user.h"
#include "server/transfer/transfer_types.h"

namespace ckptd {

// Reads each needed byte of the files once, in file order, in large blocks, and
// puts it in its final place in every target, or sends it there. Contiguous uncast runs go straight
// there. Every byte of every PlannedTensor is written; padding tails
// [bytes, padded_bytes) are zeroed by ZeroPadding, not here. Errors name file
// and tensor; on error the slabs' content is unspecified. Blocking: returns when
// all its threads have ended, after an error within about one block each.
absl::StatusOr<TransferResult> RunTransfer(const CheckpointIndex& index,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress);

// The same for ranks of a group: `targets[i]` is `ranks[i]`. What is copied is worked
// out on the way, so memory does not grow with ranks times tensors.
absl::StatusOr<TransferResult> RunTransfer(const GroupPlan& group,
                                           std::span<const PlannedRank* const> ranks,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress);

// The same, step by step: `user` is told of each. Without digests, and in one part: several
// readers do steps of their own.
absl::StatusOr<TransferResult> RunTransfer(const GroupPlan& group, const StepList& steps,
                                           std::span<const StepTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress, StepUser& user);

// Zeroes all bytes of a slab that no tensor's local bytes cover: gaps between
// tensors, padding tails, the end. No byte of an earlier checkpoint stays
// visible. Runs on the rank that owns the slab: beside the transfer where the slab is
// written by address; before it where it is staged, as what else is in it may go, too,
// and padding is sent along. Errors: StagedMemory::Zero's.
absl::Status ZeroPadding(const RankPlan& plan, const SlabView& slab);
// The tensors (numbers in the plan) behind which some of those bytes are not zero.
// Errors, also of DigestInSlab: those of reading staged memory.
absl::StatusOr<std::set<uint32_t>> DirtyPadding(const RankPlan& plan, const SlabView& slab);

// Copies the first `bytes` of a slab to the same places of another one, on `threads`
// threads (0: one per core); both are that long. Errors, after which the target's content
// is unspecified: StagedMemory's, NO_MEMORY without threads.
absl::Status CopySlab(const SlabView& from, const SlabView& to, uint64_t bytes, unsigned threads);

// Digest (as TensorDigest of common/base/digest.h) of bytes that may cross
// segments of a slab.
absl::StatusOr<uint64_t> DigestInSlab(const SlabView& slab, uint64_t offset, uint64_t bytes);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_H_
