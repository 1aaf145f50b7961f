// Where the bytes of one step lie in a rank's slab: what is sent to the rank, and what it
// receives. Sender and receiver must get the same answer, though the sender has only one window
// of the plan. So the answer uses nothing that only one of them knows.
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
  // Ascending and not adjacent. Short padding between two tensors of the step is part of a span;
  // the sender has zeros there.
  std::vector<SlabSpan> spans;
  uint64_t tensor_bytes = 0;  // without padding
};

// Selects copies of a plan. Null: all.
using CopyFilter = std::function<bool(const CopyOp&)>;

// Made from all copies of a plan, or from some. Immutable, so thread-safe. The plan must outlive
// it.
class SlabSpans {
 public:
  // Padding up to this length joins two spans: a message costs more than these bytes.
  static constexpr uint64_t kJoinGap = 4096;

  // Errors: Internal COVERAGE for malformed copies.
  static absl::StatusOr<SlabSpans> Make(const RankPlan& plan, const CopyFilter& only = nullptr);

  // What the rank receives in a step.
  StepShare Received(const ScatterStep& step) const;
  // The same bytes in file order, with the spans of each copy apart. For tensors that ranks hold
  // whole: they are equal on all ranks except for their offsets.
  StepShare ReceivedPerCopy(const ScatterStep& step) const;

 private:
  explicit SlabSpans(const RankPlan& plan) : plan_(&plan) {}
  void Append(const CopyOp& op, const ScatterStep& step, std::vector<SlabSpan>& out) const;
  std::vector<SlabSpan> Join(std::vector<SlabSpan> parts) const;
  bool OnlyPadding(uint64_t from, uint64_t to) const;

  const RankPlan* plan_;
  std::vector<uint32_t> ops_;        // the selected copies
  // per selected copy, the largest end of the copies of the same file up to it
  std::vector<uint64_t> reach_;
  std::vector<uint32_t> by_offset_;  // tensors that have bytes, in the order of the slab
  uint64_t flats_end_ = 0;           // where the last flat parameter ends in the slab
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SLAB_SPANS_H_
