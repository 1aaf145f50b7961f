#include "server/transfer/slab_spans.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "server/transfer/geometry.h"

namespace ckptd {

absl::StatusOr<SlabSpans> SlabSpans::Make(const RankPlan& plan, const CopyFilter& only) {
  SlabSpans spans(plan);
  for (uint32_t i = 0; i < plan.ops.size(); ++i) {
    const CopyOp& op = plan.ops[i];
    if (only && !only(op)) continue;
    // An op is refused here, so Received need not handle errors.
    CKPTD_RETURN_IF_ERROR(MakeGeometry(op, plan.tensors[op.tensor].offset).status());
    const bool follows = !spans.ops_.empty() && plan.ops[spans.ops_.back()].file == op.file;
    spans.ops_.push_back(i);
    spans.reach_.push_back(follows ? std::max(spans.reach_.back(), op.file_end())
                                   : op.file_end());
  }
  for (uint32_t i = 0; i < plan.tensors.size(); ++i) {
    if (plan.tensors[i].bytes > 0) spans.by_offset_.push_back(i);
  }
  for (const PlannedFlat& flat : plan.flats) {
    const uint64_t bytes = flat.elements * BitsOf(flat.dtype) / 8;
    spans.flats_end_ = std::max(spans.flats_end_, flat.offset + bytes);
  }
  std::sort(spans.by_offset_.begin(), spans.by_offset_.end(), [&plan](uint32_t a, uint32_t b) {
    return plan.tensors[a].offset < plan.tensors[b].offset;
  });
  return spans;
}

StepShare SlabSpans::ReceivedPerCopy(const ScatterStep& step) const {
  const std::vector<CopyOp>& ops = plan_->ops;
  const auto of_file = std::partition_point(
      ops_.begin(), ops_.end(), [&](uint32_t op) { return ops[op].file < step.file; });
  const auto last = std::partition_point(of_file, ops_.end(), [&](uint32_t op) {
    return ops[op].file == step.file && ops[op].file_offset < step.end;
  });
  const auto first = std::partition_point(of_file, last, [&](const uint32_t& op) {
    return reach_[static_cast<size_t>(&op - ops_.data())] <= step.begin;
  });
  StepShare share;
  for (auto op = first; op != last; ++op) Append(ops[*op], step, share.spans);
  for (const SlabSpan& span : share.spans) share.tensor_bytes += span.bytes;
  return share;
}

StepShare SlabSpans::Received(const ScatterStep& step) const {
  StepShare share = ReceivedPerCopy(step);
  share.spans = Join(std::move(share.spans));
  return share;
}

// Appends the spans that one copy writes.
void SlabSpans::Append(const CopyOp& op, const ScatterStep& step,
                       std::vector<SlabSpan>& out) const {
  const uint64_t tensor = plan_->tensors[op.tensor].offset;
  const absl::StatusOr<Geometry> made = MakeGeometry(op, tensor);
  if (!made.ok() || made->end <= step.begin || made->begin >= step.end) return;
  const Geometry& g = *made;
  if (g.dims == 0 || g.dense_local) {
    const uint64_t from = LocalBytesBefore(g, step.begin);
    const uint64_t to = LocalBytesBefore(g, step.end);
    if (from < to) out.push_back({tensor + g.local + from, to - from});
    return;
  }
  for (RunCursor run(g, step.begin); !run.done() && run.source() < step.end; run.Next()) {
    const uint64_t from = std::max(run.source(), step.begin) - run.source();
    const uint64_t to = std::min(run.source() + g.run_source, step.end) - run.source();
    out.push_back({tensor + run.local() + g.ToLocal(from), g.ToLocal(to) - g.ToLocal(from)});
  }
}

// Whether [from, to) is the padding between two tensors that are neighbours in the slab. Another
// window may have a tensor between them, so the gap must be too short for one. Members of flat
// parameters have no padding that could be told from a tensor.
bool SlabSpans::OnlyPadding(uint64_t from, uint64_t to) const {
  const auto& tensors = plan_->tensors;
  const auto next = std::partition_point(by_offset_.begin(), by_offset_.end(), [&](uint32_t i) {
    return tensors[i].offset < to;
  });
  if (next == by_offset_.begin() || next == by_offset_.end()) return false;
  const PlannedTensor& before = tensors[*std::prev(next)];
  if (before.offset < flats_end_ || before.offset + before.bytes != from) return false;
  const uint64_t end = before.offset + before.padded_bytes;
  return tensors[*next].offset == to && to - end < kSlabAlignment;
}

std::vector<SlabSpan> SlabSpans::Join(std::vector<SlabSpan> parts) const {
  std::sort(parts.begin(), parts.end(), [](const SlabSpan& a, const SlabSpan& b) {
    return a.offset < b.offset;
  });
  std::vector<SlabSpan> joined;
  for (const SlabSpan& part : parts) {
    if (!joined.empty()) {
      SlabSpan& last = joined.back();
      const uint64_t end = last.offset + last.bytes;
      const bool adjoins = part.offset == end;
      if (adjoins || (part.offset - end <= kJoinGap && OnlyPadding(end, part.offset))) {
        last.bytes = part.offset + part.bytes - last.offset;
        continue;
      }
    }
    joined.push_back(part);
  }
  return joined;
}

}  // namespace ckptd
