// Where in a rank's slab the bytes of one step land: what is sent to that rank, and what
// it receives. Both sides ask the same question, the receiver of its plan, the sender of the
// part of it that a window has: what follows from neither alone is not taken into account.
#ifndef CKPTD_SERVER_TRANSFER_SLAB_SPANS_H_
#define CKPTD_SERVER_TRANSFER_SLAB_SPANS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/plan.h"
#include "common/plan/scatter_order.h"
#include "server/memory/slab_view.h"

namespace ckptd {

struct StepShare {
  // Ascending, apart from each other. Short padding between two tensors that both lie in
  // the step is part of a span: whoever sends it has zeros there.
  std::vector<SlabSpan> spans;
  uint64_t tensor_bytes = 0;  // without padding
};

// Which copies of a plan are meant; null: all.
using CopyFilter = std::function<bool(const CopyOp&)>;

// Of all copies of a plan, or of some. Thread-safe once made. The plan outlives it.
class SlabSpans {
 public:
  // Padding up to this joins two spans: a message costs more than its bytes.
  static constexpr uint64_t kJoinGap = 4096;

  // Errors: Internal COVERAGE for copies that cannot be.
  static absl::StatusOr<SlabSpans> Of(const RankPlan& plan, const CopyFilter& only = nullptr);

  // What the rank receives of a step.
  StepShare In(const ScatterStep& step) const;
  // The same bytes as they lie in the files, each copy's for itself: for tensors that ranks
  // hold whole, equal on all of them but for where they begin.
  StepShare ApartIn(const ScatterStep& step) const;

 private:
  explicit SlabSpans(const RankPlan& plan) : plan_(&plan) {}
  void Append(const CopyOp& op, const ScatterStep& step, std::vector<SlabSpan>& out) const;
  std::vector<SlabSpan> Join(std::vector<SlabSpan> parts) const;
  bool OnlyPadding(uint64_t from, uint64_t to) const;

  const RankPlan* plan_;
  std::vector<uint32_t> ops_;        // those that are meant
  std::vector<uint64_t> reach_;      // per one of these, the furthest end among its file's up to it
  std::vector<uint32_t> by_offset_;  // tensors that have bytes, in the order of the slab
  uint64_t flats_end_ = 0;           // in the slab, of the last flat parameter
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SLAB_SPANS_H_
