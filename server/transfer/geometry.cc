#include "server/transfer/geometry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

absl::Status Malformed(const CopyOp& op, std::string_view why) {
  return MakeError(
      absl::StatusCode::kInternal, reason::kCoverage,
      fmt::format("reading a plan: the copy of file {} at byte {} {}; this is a defect "
                  "of the planner, report it with the layout",
                  op.file, op.file_offset, why));
}

// Grows `span` to `count` steps of `stride`. False if steps overlap or numbers overflow.
bool GrowSpan(uint64_t count, uint64_t stride, uint64_t& span) {
  if (count == 1) return true;
  uint64_t steps = 0;
  return stride >= span && !__builtin_mul_overflow(count - 1, stride, &steps) &&
         !__builtin_add_overflow(steps, span, &span);
}

absl::Status SetElement(const CopyOp& op, Geometry& g) {
  g.from = op.from;
  g.to = op.to;
  g.swap = op.swap;
  if (op.swap != 1 && op.swap != NumberBytesOf(op.from)) {
    return Malformed(op, "turns round what is no number");
  }
  g.negate = op.negate;
  if (op.negate != Signs::kNone && !HasSigns(op.from)) {
    return Malformed(op, "negates what has no sign");
  }
  g.from_size = g.to_size = op.ConvertedBytes();
  if (!op.casts()) return absl::OkStatus();
  if (!IsCastable(op.from) || !IsCastable(op.to)) return Malformed(op, "casts types that have no "
                                                                       "cast");
  g.from_size = BitsOf(op.from) / 8;
  g.to_size = BitsOf(op.to) / 8;
  return absl::OkStatus();
}

bool Aligned(const Geometry& g) {
  if (g.run_source % g.from_size != 0 || g.local % g.to_size != 0) return false;
  for (uint32_t d = 0; d < g.dims; ++d) {
    if (g.source_stride[d] % g.from_size != 0 || g.local_stride[d] % g.to_size != 0) return false;
  }
  return true;
}

// Whether the loops of `g` put its runs apart from each other locally, whatever their order; sets
// ascends_local, and how far they reach.
bool SpreadLocally(Geometry& g, uint64_t& span) {
  std::array<uint32_t, CopyOp::kMaxDims> order = {};
  for (uint32_t i = 0; i < g.dims; ++i) order[i] = g.dims - 1 - i;
  const auto longer = [&g](uint32_t a, uint32_t b) {
    return g.local_stride[a] < g.local_stride[b];
  };
  auto* const end = order.begin() + g.dims;
  g.ascends_local = std::is_sorted(order.begin(), end, longer);
  if (!g.ascends_local) std::stable_sort(order.begin(), end, longer);
  span = g.run_local;
  return std::all_of(order.begin(), end, [&g, &span](uint32_t d) {
    return GrowSpan(g.count[d], g.local_stride[d], span);
  });
}

// Takes the op's loops, innermost first, into `g` (outermost first again at the
// end), folding those that continue a run on both sides. False on overlap.
bool TakeLoops(const CopyOp& op, Geometry& g, uint64_t& source_span) {
  uint64_t dense_bytes = g.run_local;  // while they lie back to back
  g.dense_local = true;
  for (uint32_t d = op.dims; d-- > 0;) {
    const uint64_t count = op.count[d];
    if (count == 1) continue;
    const bool folds =
        g.dims == 0 && op.file_stride[d] == g.run_source && op.slab_stride[d] == g.run_local;
    g.dense_local = g.dense_local && op.slab_stride[d] == dense_bytes &&
                    !__builtin_mul_overflow(dense_bytes, count, &dense_bytes);
    if (!GrowSpan(count, op.file_stride[d], source_span)) return false;
    if (folds) {
      if (!g.dense_local) return false;
      g.run_source = source_span;
      g.run_local = dense_bytes;
      continue;
    }
    if (__builtin_mul_overflow(g.runs, count, &g.runs)) return false;
    g.count[g.dims] = count;
    g.source_stride[g.dims] = op.file_stride[d];
    g.local_stride[g.dims] = op.slab_stride[d];
    ++g.dims;
  }
  std::reverse(g.count.begin(), g.count.begin() + g.dims);
  std::reverse(g.source_stride.begin(), g.source_stride.begin() + g.dims);
  std::reverse(g.local_stride.begin(), g.local_stride.begin() + g.dims);
  return true;
}

}  // namespace

absl::StatusOr<Geometry> MakeGeometry(const CopyOp& op, uint64_t tensor_offset) {
  Geometry g;
  if (op.dims > CopyOp::kMaxDims) return Malformed(op, "has too many loops");
  if (op.slab_offset < tensor_offset) return Malformed(op, "starts before its tensor");
  CKPTD_RETURN_IF_ERROR(SetElement(op, g));
  g.begin = op.file_offset;
  g.end = op.file_offset;
  g.local = op.slab_offset - tensor_offset;
  const auto* count_end = op.count.begin() + op.dims;
  if (op.run_bytes == 0 || std::find(op.count.begin(), count_end, 0) != count_end) {
    g.runs = 0;
    return g;
  }
  g.run_source = op.run_bytes;
  if (__builtin_mul_overflow(op.run_bytes / g.from_size, g.to_size, &g.run_local)) {
    return Malformed(op, "is longer than 64 bits count");
  }
  uint64_t source_span = g.run_source;
  uint64_t local_span = 0;
  if (!TakeLoops(op, g, source_span) || !SpreadLocally(g, local_span)) {
    return Malformed(op, "has loops that overlap");
  }
  uint64_t local_end = 0;
  if (__builtin_add_overflow(g.begin, source_span, &g.end) ||
      __builtin_add_overflow(g.local, local_span, &local_end)) {
    return Malformed(op, "is longer than 64 bits count");
  }
  if (!Aligned(g)) return Malformed(op, "cuts elements that it converts");
  return g;
}

bool SameCopy(const Geometry& a, const Geometry& b) {
  return a.begin == b.begin && a.end == b.end && a.local == b.local && a.from == b.from &&
         a.to == b.to && a.swap == b.swap && a.negate == b.negate && a.run_source == b.run_source &&
         a.dims == b.dims && a.count == b.count &&
         a.source_stride == b.source_stride && a.local_stride == b.local_stride;
}

uint64_t LocalBytesBefore(const Geometry& g, uint64_t source) {
  if (source <= g.begin) return 0;
  const RunCursor cursor(g, source);
  if (cursor.done()) return g.local_bytes();
  const uint64_t in_run = source > cursor.source() ? source - cursor.source() : 0;
  return cursor.index() * g.run_local + g.ToLocal(in_run);
}

RunCursor::RunCursor(const Geometry& geometry, uint64_t source)
    : geometry_(geometry), source_(geometry.begin), local_(geometry.local) {
  if (geometry.runs == 0 || source >= geometry.end) {
    done_ = true;
    return;
  }
  uint64_t rest = source > geometry.begin ? source - geometry.begin : 0;
  for (uint32_t d = 0; d < geometry.dims; ++d) {
    at_[d] = std::min(rest / geometry.source_stride[d], geometry.count[d] - 1);
    rest -= at_[d] * geometry.source_stride[d];
    source_ += at_[d] * geometry.source_stride[d];
    local_ += at_[d] * geometry.local_stride[d];
  }
  if (rest >= geometry.run_source) Next();
}

uint64_t RunCursor::index() const {
  uint64_t index = 0;
  for (uint32_t d = 0; d < geometry_.dims; ++d) index = index * geometry_.count[d] + at_[d];
  return index;
}

void RunCursor::Next() {
  for (uint32_t d = geometry_.dims; d-- > 0;) {
    source_ += geometry_.source_stride[d];
    local_ += geometry_.local_stride[d];
    if (++at_[d] < geometry_.count[d]) return;
    source_ -= geometry_.count[d] * geometry_.source_stride[d];
    local_ -= geometry_.count[d] * geometry_.local_stride[d];
    at_[d] = 0;
  }
  done_ = true;
}

}  // namespace ckptd
