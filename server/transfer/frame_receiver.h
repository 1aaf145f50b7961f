// Places frames that readers on other hosts send to this rank. It checks every claim of a frame
// against this rank's own plan. Copies, casts and digests are done by the same code as for local
// reads.
#ifndef CKPTD_SERVER_TRANSFER_FRAME_RECEIVER_H_
#define CKPTD_SERVER_TRANSFER_FRAME_RECEIVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/checkpoint/index.h"
#include "common/plan/plan.h"
#include "server/memory/slab_view.h"
#include "server/transfer/frames.h"

namespace ckptd {

class ItemCopies;

// The streams of a prepared load share one. Thread-safe. It owns its plan. The slab must live
// while Take or Digests runs.
class FrameReceiver {
 public:
  // Errors: those of BuildSchedule.
  static absl::StatusOr<std::unique_ptr<FrameReceiver>> Make(
      std::shared_ptr<const CheckpointIndex> index, RankPlan plan, const SlabView& slab,
      bool digests);
  ~FrameReceiver();

  // Places one frame, whose payload lies in `pieces`. An error ends all receiving. Errors:
  // InvalidArgument TRANSFER_INVALID for a frame that does not fit the plan or comes twice,
  // DataLoss TRANSFER_CORRUPT for a wrong checksum. After the latter the slab holds bad bytes and
  // must not be published. Errors name the file, the offset and this rank.
  absl::Status Take(const FrameHeader& header, std::span<const std::span<const std::byte>> pieces);

  // Bytes of tensors placed so far.
  uint64_t placed_bytes() const;

  // Refuses further frames and waits at most `patience` for those in progress. Returns the first
  // error of Take, if any.
  absl::Status Close(std::chrono::nanoseconds patience);
  // The digest of each tensor, in plan order. Only after Close, and only if all bytes came in
  // frames.
  absl::StatusOr<std::vector<uint64_t>> Digests() const;

 private:
  struct Parts;
  struct Lane;

  explicit FrameReceiver(std::unique_ptr<Parts> parts);
  absl::Status Check(const FrameHeader& header, uint64_t bytes) const;
  absl::Status Place(Lane& lane, const FrameHeader& header,
                     std::span<const std::span<const std::byte>> pieces);
  absl::Status Claim(const FrameHeader& header) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Facts FactsOfFrame(const FrameHeader& header) const;
  absl::Status Refuse(const FrameHeader& header, const std::string& why) const;
  absl::Status Corrupt(const FrameHeader& header, const ItemCopies& copies) const;

  const std::unique_ptr<Parts> parts_;
  mutable Mutex mutex_;
  CondVar idle_;
  // Source ranges that have come, joined, per file: begin -> end.
  std::vector<std::map<uint64_t, uint64_t>> claimed_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);  // not in use now
  size_t busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t placed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_FRAME_RECEIVER_H_
