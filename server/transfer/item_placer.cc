#include "server/transfer/item_placer.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/byte_swap.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cast/cast.h"
#include "server/transfer/stream_copy.h"

namespace ckptd {
namespace {

// Converted bytes wait here, in the first-level cache, to be hashed and streamed out. A multiple of
// every element size.
constexpr size_t kCastBytes = 8 << 10;
// The largest ratio of an element's bytes to its bytes after a cast.
constexpr size_t kMostNarrowing = 4;
// Bytes that are used more than once are copied in pieces of this size, so that the second use
// finds them in cache.
constexpr uint64_t kStepBytes = 32 << 10;
// Average bytes per copy when copies are read one by one. Below this, reading the gaps as well is
// cheaper.
constexpr uint64_t kMinReadBytes = 32 << 10;
// Bytes of one copy for several GPUs. For less than this, writing to each GPU's staged bytes is
// cheaper than a copy of its own.
constexpr uint64_t kMinGroupBytes = 64 << 10;

}  // namespace

ItemPlacer::ItemPlacer(const ItemCopies& copies, std::span<const TransferTarget> targets,
                       SlabWriter& slabs, DigestBoard* board)
    : copies_(copies),
      targets_(targets),
      slabs_(slabs),
      blocks_(copies, targets, slabs),
      board_(board),
      streams_(board == nullptr ? 0 : kSlots),
      cast_buffer_(std::make_unique_for_overwrite<std::byte[]>(kCastBytes)) {}

void ItemPlacer::Begin() {
  actives_.clear();
  grouped_.clear();
  fills_.clear();
  slots_in_use_ = 0;
  for (const ItemCopies::Active& copy : copies_.actives()) {
    Active active;
    active.copy = &copy;
    const Destination& first = copies_.DestinationsOf(copy).front();
    active.tensor_bytes = targets_[first.target].plan->tensors[first.tensor].bytes;
    if (board_ != nullptr) FindWholeBlocks(active);
    FindGrouped(active);
    actives_.push_back(active);
  }
  plain_ = AllPlain();
  blocks_.Begin();
}

bool ItemPlacer::AllPlain() const {
  if (copies_.needed_bytes() < actives_.size() * kMinReadBytes) return false;
  uint64_t end = 0;
  for (const Active& active : actives_) {
    const Geometry& g = active.geometry();
    const auto to = DestinationsOf(active);
    // Copies are sorted by their begin.
    if (g.converts() || g.dims > 0 || g.begin < end) return false;
    const bool one_place = to.size() == 1 ? slabs_.Stages(to.front().target)
                                          : active.grouped == to.size();
    if (!one_place) return false;
    end = g.end;
  }
  return !actives_.empty();
}

void ItemPlacer::FindWholeBlocks(Active& active) const {
  const Geometry& g = active.geometry();
  if (!g.dense_local) return;
  const uint64_t from = g.local + LocalBytesBefore(g, copies_.item().begin);
  const uint64_t to = g.local + LocalBytesBefore(g, copies_.item().end);
  active.first_whole = (from + kDigestBlockBytes - 1) / kDigestBlockBytes;
  active.last_whole = to / kDigestBlockBytes;
  if (to == active.tensor_bytes && to % kDigestBlockBytes != 0) ++active.last_whole;
}

void ItemPlacer::FindGrouped(Active& active) {
  const Geometry& g = active.geometry();
  const WorkItem& item = copies_.item();
  if (LocalBytesBefore(g, item.end) - LocalBytesBefore(g, item.begin) < kMinGroupBytes) return;
  active.first_grouped = grouped_.size();
  for (const Destination& where : DestinationsOf(active)) {
    if (!slabs_.Stages(where.target)) continue;
    grouped_.push_back(slabs_.PlaceOf(where.target, TensorAt(where)));
  }
  active.grouped = grouped_.size() - active.first_grouped;
}

void ItemPlacer::PlaceOnDevices(uint64_t offset, std::span<const std::byte> data) {
  const bool placed = blocks_.Place(offset, data);
  for (size_t i = 0; i < actives_.size(); ++i) {
    Active& active = actives_[i];
    active.on_device = placed && blocks_.HandlesCopy(i);
    if (!active.on_device || board_ != nullptr) continue;
    const Geometry& g = active.geometry();
    active.placed += LocalBytesBefore(g, offset + data.size()) - LocalBytesBefore(g, offset);
  }
}

void ItemPlacer::Place(uint64_t offset, std::span<const std::byte> data) {
  PlaceOnDevices(offset, data);
  while (!data.empty()) {
    const auto n = static_cast<size_t>(copies_.PartEnd(offset, offset + data.size()) - offset);
    PlacePart(offset, data.first(n));
    data = data.subspan(n);
    offset += n;
  }
}

absl::Status ItemPlacer::PlaceByReading(uint64_t offset, uint64_t end, ReadTo read) {
  for (Active& active : actives_) {
    const uint64_t from = std::max(active.geometry().begin, offset);
    const uint64_t to = std::min(active.geometry().end, end);
    if (from < to) CKPTD_RETURN_IF_ERROR(ReadRun(active, from, to, read));
  }
  return absl::OkStatus();
}

absl::Status ItemPlacer::ReadRun(Active& active, uint64_t from, uint64_t to, ReadTo read) {
  active.on_device = true;  // Move must not write it again when it is hashed
  const uint64_t first = active.geometry().local + (from - active.geometry().begin);
  uint64_t local = first;
  absl::Status status;
  Visit(active, first, to - from, [&](std::byte* place, size_t n) {
    if (status.ok()) status = read(from, {place, n});
    if (status.ok()) PlaceRun(active, place, local, n);
    from += n;
    local += n;
  });
  return status;
}

void ItemPlacer::PlacePart(uint64_t offset, std::span<const std::byte> data) {
  const uint64_t end = offset + data.size();
  for (Active& active : actives_) {
    const SharedCopy& copy = *active.copy->copy;
    if (copy.begin >= end || copy.end <= offset) continue;
    if (active.on_device && board_ == nullptr) continue;
    const Geometry& g = active.geometry();
    for (RunCursor run(g, offset); !run.done() && run.source() < end; run.Next()) {
      const uint64_t from = std::max(run.source(), offset);
      const uint64_t to = std::min(run.source() + g.run_source, end);
      PlaceRun(active, data.data() + (from - offset), run.local() + g.ToLocal(from - run.source()),
               g.ToLocal(to - from));
    }
  }
}

// Here and below, `bytes` and `local` count bytes of the target.
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
    data += active.geometry().ToSource(n);
    local += n;
    bytes -= n;
  }
}

// The item fills this block alone, so the block's parts come in order.
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
  if (active.on_device && hash == nullptr) return;
  const Geometry& g = active.geometry();
  const bool reused = hash != nullptr || active.copy->copy->destinations > 1;
  const uint64_t step = g.converts() ? kCastBytes : reused ? kStepBytes : bytes;
  while (bytes > 0) {
    const uint64_t n = std::min(bytes, step);
    const std::byte* out = data;
    if (g.converts()) out = Convert(g, data, static_cast<size_t>(n));
    if (hash != nullptr) hash->Update({out, static_cast<size_t>(n)});
    if (!active.on_device) Write(active, out, local, n);
    data += g.ToSource(n);
    local += n;
    bytes -= n;
  }
}

const std::byte* ItemPlacer::Convert(const Geometry& g, const std::byte* data, size_t bytes) {
  const auto reshape = [&g, data](std::byte* to, size_t size) {
    SwapBytes(g.swap, data, to, size);
    NegateNumbers(NumberBytesOf(g.from), g.negate, to, size);
  };
  if (!g.casts()) {
    reshape(cast_buffer_.get(), bytes);
    return cast_buffer_.get();
  }
  if (g.reshapes()) {
    if (swap_buffer_ == nullptr) {
      swap_buffer_ = std::make_unique_for_overwrite<std::byte[]>(kCastBytes * kMostNarrowing);
    }
    reshape(swap_buffer_.get(), static_cast<size_t>(g.ToSource(bytes)));
    data = swap_buffer_.get();
  }
  Cast(g.from, g.to, data, cast_buffer_.get(), bytes / g.to_size);
  return cast_buffer_.get();
}

void ItemPlacer::Write(const Active& active, const std::byte* bytes, uint64_t local,
                       uint64_t count) {
  const std::byte* from = bytes;
  Visit(active, local, count, [&](std::byte* to, size_t n) {
    if (from == bytes + count) from = bytes;  // the next destination gets the same bytes
    StreamCopy(to, from, n);
    from += n;
  });
}

template <typename Fill>
void ItemPlacer::Visit(const Active& active, uint64_t local, uint64_t bytes, const Fill& fill) {
  if (active.grouped > 0) slabs_.ForAll(GroupedPlacesOf(active), local, bytes, fill);
  for (const Destination& where : DestinationsOf(active)) {
    if (active.grouped > 0 && slabs_.Stages(where.target)) continue;
    slabs_.ForEach(where.target, TensorAt(where) + local, bytes, fill);
  }
}

uint64_t ItemPlacer::TensorAt(const Destination& where) const {
  return targets_[where.target].plan->tensors[where.tensor].offset;
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
