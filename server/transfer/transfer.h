// Read -> place: fills the slabs of all ranks from the files of a source. The
// heart of a load. Runs on the load worker and its reader threads.
#ifndef CKPTD_SERVER_TRANSFER_TRANSFER_H_
#define CKPTD_SERVER_TRANSFER_TRANSFER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/index.h"
#include "common/layout/plan.h"

namespace ckptd {

// Writable memory of one rank's slab in this process: segments back to back.
// A view; whoever made it keeps the mappings alive for the whole transfer.
struct SlabView {
  std::vector<std::span<std::byte>> segments;
};

// One rank that takes part in a transfer.
struct TransferTarget {
  const RankPlan* plan = nullptr;
  SlabView slab;
};

struct TransferOptions {
  unsigned threads = 0;  // 0: as many as cores
  bool digests = true;
  // Polled often; a non-OK status stops the transfer with it.
  std::function<absl::Status()> interrupted;
};

// Read while the transfer runs, from any thread.
struct TransferProgress {
  explicit TransferProgress(size_t targets) : done(targets) {}
  std::atomic<uint64_t> storage_bytes = 0;   // read from files
  std::vector<std::atomic<uint64_t>> done;   // target bytes placed, per target
};

struct TransferResult {
  uint64_t storage_bytes = 0;
  // Per target, per PlannedTensor, in plan order; empty when digests are off.
  std::vector<std::vector<uint64_t>> digests;
};

// Reads each needed byte of the files once, in file order, in large blocks, and
// puts it in its final place in every target. Contiguous uncast runs go straight
// there. Every byte of every PlannedTensor is written; padding tails
// [bytes, padded_bytes) are zeroed by ZeroPadding, not here. Errors name file
// and tensor; on error the slabs' content is unspecified. Blocking.
absl::StatusOr<TransferResult> RunTransfer(const CheckpointIndex& index,
                                           std::span<const TransferTarget> targets,
                                           const TransferOptions& options,
                                           TransferProgress& progress);

// Zeroes all bytes of a slab that no tensor's local bytes cover: gaps between
// tensors, padding tails, the end. No byte of an earlier checkpoint stays
// visible. Runs on the rank that owns the slab.
void ZeroPadding(const RankPlan& plan, const SlabView& slab);

// Digest of one tensor's local bytes, as documented in ckptd.v1.TensorTable:
// XXH3-64 of the bytes up to 1 MiB, else of the LE XXH3-64 of its 1 MiB blocks.
// Lives in common/base/digest.h; computed here in the same pass as the placing.

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_TRANSFER_H_
