#include "server/transfer/item_placer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/cast.h"
#include "server/transfer/stream_copy.h"

namespace ckptd {
namespace {

// Cast output waits here, in the first-level cache, to be hashed and streamed
// out. A multiple of every element size.
constexpr size_t kCastBytes = 8 << 10;
// Copied in steps of this when the bytes are used more than once, so that the
// second use finds them in cache.
constexpr uint64_t kStepBytes = 32 << 10;
// Strided copies that share rows are dealt out row by row, in the order of the
// file: copy by copy would leap through memory once per copy, three times slower.
// Rows shorter than this are dealt out several at a time.
constexpr uint64_t kMinScatterBytes = 4 << 10;
// Each part looks at every copy of the item.
constexpr size_t kMaxScatterCopies = 256;
// No element is longer: a part never ends before it begins.
constexpr uint64_t kShortestPart = 64;

}  // namespace

ItemPlacer::ItemPlacer(const Schedule& schedule, std::span<const TransferTarget> targets,
                       std::span<const SlabMap> slabs, DigestBoard* board)
    : schedule_(schedule),
      targets_(targets),
      slabs_(slabs),
      board_(board),
      streams_(board == nullptr ? 0 : kSlots),
      cast_buffer_(std::make_unique_for_overwrite<std::byte[]>(kCastBytes)) {}

std::span<const Destination> ItemPlacer::DestinationsOf(const Active& active) const {
  return std::span(schedule_.destinations)
      .subspan(active.copy->first_destination, active.copy->destinations);
}

absl::Status ItemPlacer::Begin(const WorkItem& item) {
  actives_.clear();
  fills_.clear();
  slots_in_use_ = 0;
  scatter_step_ = 0;
  for (uint32_t i = item.first_copy; i < item.last_copy; ++i) {
    const SharedCopy& copy = schedule_.copies[i];
    if (copy.end <= item.begin || copy.begin >= item.end) continue;
    Active active;
    CKPTD_ASSIGN_OR_RETURN(active.geometry, MakeGeometry(*copy.op, copy.tensor_offset));
    active.copy = &copy;
    const Destination& first = schedule_.destinations[copy.first_destination];
    active.tensor_bytes = targets_[first.target].plan->tensors[first.tensor].bytes;
    if (board_ != nullptr) FindWholeBlocks(item, active);
    if (const Geometry& g = active.geometry; g.dims > 0 && scatter_step_ == 0) {
      const uint64_t row = g.source_stride[g.dims - 1];
      scatter_step_ = (kMinScatterBytes + row - 1) / row * row;
      scatter_base_ = g.begin;
    }
    actives_.push_back(active);
  }
  if (actives_.size() < 2 || actives_.size() > kMaxScatterCopies) scatter_step_ = 0;
  FindRanges(item);
  return absl::OkStatus();
}

void ItemPlacer::FindWholeBlocks(const WorkItem& item, Active& active) const {
  const Geometry& g = active.geometry;
  if (!g.dense_local) return;
  const uint64_t from = g.local + LocalBytesBefore(g, item.begin);
  const uint64_t to = g.local + LocalBytesBefore(g, item.end);
  active.first_whole = (from + kDigestBlockBytes - 1) / kDigestBlockBytes;
  active.last_whole = to / kDigestBlockBytes;
  if (to == active.tensor_bytes && to % kDigestBlockBytes != 0) ++active.last_whole;
}

void ItemPlacer::FindRanges(const WorkItem& item) {
  cursors_.clear();
  for (const Active& active : actives_) cursors_.emplace_back(active.geometry, item.begin);
  ranges_.clear();
  // Part by part, because then they come out sorted but for rare layouts.
  for (uint64_t at = item.begin; at < item.end;) {
    const uint64_t end = PartEnd(at, item.end);
    for (size_t i = 0; i < cursors_.size(); ++i) {
      const uint64_t run_bytes = actives_[i].geometry.run_source;
      for (RunCursor& run = cursors_[i]; !run.done() && run.source() < end; run.Next()) {
        ranges_.push_back(
            {std::max(run.source(), item.begin), std::min(run.source() + run_bytes, item.end)});
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

void ItemPlacer::JoinRanges() {
  needed_bytes_ = 0;
  size_t kept = 0;
  uint64_t covered_to = 0;
  for (const SourceRange range : ranges_) {
    if (range.end > covered_to) needed_bytes_ += range.end - std::max(range.begin, covered_to);
    const bool joins = kept > 0 && range.begin <= covered_to + kReadThroughGap;
    covered_to = std::max(covered_to, range.end);
    if (joins) {
      ranges_[kept - 1].end = covered_to;
    } else {
      ranges_[kept++] = range;
    }
  }
  ranges_.resize(kept);
}

uint64_t ItemPlacer::BlockEnd(uint64_t offset, uint64_t limit) const {
  return CutAtElement(offset + kReadBlockBytes, limit);
}

uint64_t ItemPlacer::CutAtElement(uint64_t end, uint64_t limit) const {
  if (end >= limit) return limit;
  for (const Active& active : actives_) {
    const bool straddles = active.copy->begin < end && active.copy->end > end;
    if (straddles) end -= (end - active.copy->begin) % active.geometry.from_size;
  }
  return end;
}

const std::string& ItemPlacer::TensorAt(uint64_t offset) const {
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

uint64_t ItemPlacer::PartEnd(uint64_t offset, uint64_t limit) const {
  if (scatter_step_ == 0) return limit;
  uint64_t end = offset + scatter_step_ - (offset - scatter_base_) % scatter_step_;
  if (end - offset < kShortestPart) end += scatter_step_;
  return CutAtElement(end, limit);
}

void ItemPlacer::Place(uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto n = static_cast<size_t>(PartEnd(offset, offset + data.size()) - offset);
    PlacePart(offset, data.first(n));
    data = data.subspan(n);
    offset += n;
  }
}

void ItemPlacer::PlacePart(uint64_t offset, std::span<const std::byte> data) {
  const uint64_t end = offset + data.size();
  for (Active& active : actives_) {
    if (active.copy->begin >= end || active.copy->end <= offset) continue;
    const Geometry& g = active.geometry;
    for (RunCursor run(g, offset); !run.done() && run.source() < end; run.Next()) {
      const uint64_t from = std::max(run.source(), offset);
      const uint64_t to = std::min(run.source() + g.run_source, end);
      PlaceRun(active, data.data() + (from - offset), run.local() + g.ToLocal(from - run.source()),
               g.ToLocal(to - from));
    }
  }
}

// `bytes` and `local` count bytes of the target, here and below.
void ItemPlacer::PlaceRun(Active& active, const std::byte* data, uint64_t local, uint64_t bytes) {
  active.placed += bytes;
  if (board_ == nullptr) {
    Move(active, data, local, bytes, nullptr);
    return;
  }
  while (bytes > 0) {
    const uint64_t block = local / kDigestBlockBytes;
    const uint64_t n = std::min(bytes, (block + 1) * kDigestBlockBytes - local);
    if (block >= active.first_whole && block < active.last_whole) {
      PlaceInBlock(active, data, local, n);
    } else {
      Move(active, data, local, n, nullptr);
      AddFill(active, block, n);
    }
    data += active.geometry.ToSource(n);
    local += n;
    bytes -= n;
  }
}

// Part of a block that this item fills alone, so its parts come in order.
void ItemPlacer::PlaceInBlock(Active& active, const std::byte* data, uint64_t local,
                              uint64_t bytes) {
  const uint64_t block = local / kDigestBlockBytes;
  const uint64_t into = local % kDigestBlockBytes;
  const uint64_t whole = BlockBytes(active.tensor_bytes, block);
  if (into == 0) active.slot = TakeSlot();
  if (active.slot == kNoSlot) {
    Move(active, data, local, bytes, nullptr);
    AddFill(active, block, bytes);
    return;
  }
  Xxh3Stream& stream = streams_[static_cast<size_t>(active.slot)];
  if (into == 0) stream.Reset();
  Move(active, data, local, bytes, &stream);
  if (into + bytes < whole) return;
  const uint64_t digest = stream.Value();
  for (const Destination& where : DestinationsOf(active)) board_->Store(where, block, digest);
  slots_in_use_ &= ~(uint64_t{1} << active.slot);
  active.slot = kNoSlot;
}

int ItemPlacer::TakeSlot() {
  if (slots_in_use_ == ~uint64_t{0}) return kNoSlot;
  const int slot = __builtin_ctzll(~slots_in_use_);
  slots_in_use_ |= uint64_t{1} << slot;
  return slot;
}

void ItemPlacer::Move(const Active& active, const std::byte* data, uint64_t local, uint64_t bytes,
                      Xxh3Stream* hash) {
  const Geometry& g = active.geometry;
  const bool reused = hash != nullptr || active.copy->destinations > 1;
  const uint64_t step = g.casts() ? kCastBytes : reused ? kStepBytes : bytes;
  while (bytes > 0) {
    const uint64_t n = std::min(bytes, step);
    const std::byte* out = data;
    if (g.casts()) {
      Cast(g.from, g.to, data, cast_buffer_.get(), static_cast<size_t>(n / g.to_size));
      out = cast_buffer_.get();
    }
    if (hash != nullptr) hash->Update({out, static_cast<size_t>(n)});
    Write(active, out, local, n);
    data += g.ToSource(n);
    local += n;
    bytes -= n;
  }
}

void ItemPlacer::Write(const Active& active, const std::byte* bytes, uint64_t local,
                       uint64_t count) {
  for (const Destination& where : DestinationsOf(active)) {
    const uint64_t at = targets_[where.target].plan->tensors[where.tensor].offset + local;
    const std::byte* from = bytes;
    slabs_[where.target].ForEach(at, count, [&from](std::byte* to, size_t n) {
      StreamCopy(to, from, n);
      from += n;
    });
  }
}

void ItemPlacer::AddFill(const Active& active, uint64_t block, uint64_t bytes) {
  if (!fills_.empty() && fills_.back().active == &active && fills_.back().block == block) {
    fills_.back().bytes += bytes;
    return;
  }
  fills_.push_back({&active, block, bytes});
}

absl::Status ItemPlacer::Finish(std::span<uint64_t> done) {
  StreamFence();
  for (const PendingFill& fill : fills_) {
    for (const Destination& where : DestinationsOf(*fill.active)) {
      if (board_->Fill(where, fill.block, fill.bytes)) continue;
      const RankPlan& plan = *targets_[where.target].plan;
      const std::string& tensor = plan.tensors[where.tensor].name;
      return MakeError(
          absl::StatusCode::kInternal, reason::kCoverage,
          fmt::format("placing tensor {} of rank {}: block {} was written more than once; this is "
                      "a defect of the planner, report it with the layout",
                      tensor, plan.rank, fill.block),
          {{"tensor", tensor}, {"rank", std::to_string(plan.rank)}});
    }
  }
  for (const Active& active : actives_) {
    for (const Destination& where : DestinationsOf(active)) done[where.target] += active.placed;
  }
  return absl::OkStatus();
}

}  // namespace ckptd
