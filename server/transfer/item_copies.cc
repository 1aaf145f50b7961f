#include "server/transfer/item_copies.h"

#include <algorithm>

#include "common/base/status.h"

namespace ckptd {
namespace {

// Strided copies that share rows are done row by row, in the order of the file. Copy by copy they
// would pass through memory once per copy, which is three times slower. Rows shorter than this
// are done several at a time.
constexpr uint64_t kMinScatterBytes = 4 << 10;
// A bound, because each part looks at every copy of the item.
constexpr size_t kMaxScatterCopies = 256;
// No element is longer than this, so a part never ends before it begins.
constexpr uint64_t kShortestPart = 64;

}  // namespace

absl::Status ItemCopies::Begin(const WorkItem& item) {
  item_ = item;
  actives_.clear();
  scatter_step_ = 0;
  for (uint32_t i = item.first_copy; i < item.last_copy; ++i) {
    const SharedCopy& copy = schedule_.copies[i];
    if (copy.end <= item.begin || copy.begin >= item.end) continue;
    Active active;
    CKPTD_ASSIGN_OR_RETURN(active.geometry, MakeGeometry(*copy.op, copy.tensor_offset));
    active.copy = &copy;
    if (const Geometry& g = active.geometry; g.dims > 0 && scatter_step_ == 0) {
      const uint64_t row = g.source_stride[g.dims - 1];
      scatter_step_ = (kMinScatterBytes + row - 1) / row * row;
      scatter_base_ = g.begin;
    }
    actives_.push_back(active);
  }
  if (actives_.size() < 2 || actives_.size() > kMaxScatterCopies) scatter_step_ = 0;
  FindRanges();
  return absl::OkStatus();
}

std::span<const Destination> ItemCopies::DestinationsOf(const Active& active) const {
  return std::span(schedule_.destinations)
      .subspan(active.copy->first_destination, active.copy->destinations);
}

void ItemCopies::FindRanges() {
  cursors_.clear();
  for (const Active& active : actives_) cursors_.emplace_back(active.geometry, item_.begin);
  ranges_.clear();
  // Ranges are added part by part, because then they come out sorted in all but rare layouts.
  for (uint64_t at = item_.begin; at < item_.end;) {
    const uint64_t end = PartEnd(at, item_.end);
    for (size_t i = 0; i < cursors_.size(); ++i) {
      const uint64_t run_bytes = actives_[i].geometry.run_source;
      for (RunCursor& run = cursors_[i]; !run.done() && run.source() < end; run.Next()) {
        ranges_.push_back(
            {std::max(run.source(), item_.begin), std::min(run.source() + run_bytes, item_.end)});
      }
    }
    at = end;
  }
  const auto before = [](const SourceRange& a, const SourceRange& b) { return a.begin < b.begin; };
  if (!std::is_sorted(ranges_.begin(), ranges_.end(), before)) {
    std::sort(ranges_.begin(), ranges_.end(), before);
  }
  JoinRanges();
}

void ItemCopies::JoinRanges() {
  needed_bytes_ = 0;
  size_t kept = 0;
  uint64_t covered_to = 0;
  for (const SourceRange range : ranges_) {
    if (range.end > covered_to) needed_bytes_ += range.end - std::max(range.begin, covered_to);
    const bool joins = kept > 0 && range.begin <= covered_to + join_gap_;
    covered_to = std::max(covered_to, range.end);
    if (joins) {
      ranges_[kept - 1].end = covered_to;
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

uint64_t ItemCopies::local_bytes() const {
  uint64_t total = 0;
  for (const Active& active : actives_) {
    total += (LocalBytesBefore(active.geometry, item_.end) -
              LocalBytesBefore(active.geometry, item_.begin)) *
             active.copy->destinations;
  }
  return total;
}

uint64_t ItemCopies::CutAtElement(uint64_t end, uint64_t limit) const {
  if (end >= limit) return limit;
  for (const Active& active : actives_) {
    const bool straddles = active.copy->begin < end && active.copy->end > end;
    if (straddles) end -= (end - active.copy->begin) % active.geometry.from_size;
  }
  return end;
}

bool ItemCopies::CutsNoElement() const {
  return CutAtElement(item_.begin, UINT64_MAX) == item_.begin &&
         CutAtElement(item_.end, UINT64_MAX) == item_.end;
}

uint64_t ItemCopies::PartEnd(uint64_t offset, uint64_t limit) const {
  if (scatter_step_ == 0) return limit;
  uint64_t end = offset + scatter_step_ - (offset - scatter_base_) % scatter_step_;
  if (end - offset < kShortestPart) end += scatter_step_;
  return CutAtElement(end, limit);
}

const std::string& ItemCopies::TensorAt(uint64_t offset) const {
  const Active* found = &actives_.back();
  for (const Active& active : actives_) {
    if (active.copy->end > offset) {
      found = &active;
      break;
    }
  }
  const Destination& where = DestinationsOf(*found).front();
  return targets_[where.target].plan->tensors[where.tensor].name;
}

}  // namespace ckptd
