#include "server/transfer/block_placer.h"

#include <algorithm>

#include "server/transfer/stream_copy.h"

namespace ckptd {

static_assert(BlockCopy::kMaxDims == CopyOp::kMaxDims);

void BlockPlacer::Begin() {
  device_copies_.clear();
  slab_copies_.clear();
  for (const ItemCopies::Active& active : copies_.actives()) {
    device_copies_.push_back({slab_copies_.size(), 0});
    if (SuitsDevice(active)) AddDeviceCopies(active);
  }
}

bool BlockPlacer::SuitsDevice(const ItemCopies::Active& active) const {
  const Geometry& g = active.geometry;
  if (g.reshapes()) return false;  // no kernel turns numbers round, or signs over
  // The processor does casts that narrow, so that fewer bytes cross the link.
  const bool widens = g.casts() && g.to_size >= g.from_size;
  const bool short_runs = g.dims > 0 && g.run_source < kShortRun;
  if (!widens && !short_runs) return false;
  const auto& to = copies_.DestinationsOf(active);
  return std::all_of(to.begin(), to.end(), [this](const Destination& where) {
    return slabs_.CanCopyFromBlocks(where.target);
  });
}

void BlockPlacer::AddDeviceCopies(const ItemCopies::Active& active) {
  const Geometry& g = active.geometry;
  BlockCopy copy;
  copy.from = g.from;
  copy.to = g.to;
  copy.begin = g.begin;
  copy.run_bytes = g.run_source;
  copy.dims = g.dims;
  copy.count = g.count;
  copy.source_stride = g.source_stride;
  copy.target_stride = g.local_stride;
  for (const Destination& where : copies_.DestinationsOf(active)) {
    const PlannedTensor& tensor = targets_[where.target].plan->tensors[where.tensor];
    copy.target = tensor.offset + g.local;
    copy.room = tensor.bytes - g.local;
    slab_copies_.push_back({where.target, copy});
  }
  device_copies_.back().copies = slab_copies_.size() - device_copies_.back().first;
}

bool BlockPlacer::Place(uint64_t offset, std::span<const std::byte> data) {
  const bool fits = data.size() >= kMinBlockBytes && data.size() <= StagingLane::kMaxBlockBytes;
  if (slab_copies_.empty() || !fits) return false;
  const uint64_t end = offset + data.size();
  uint64_t taken = 0;
  for (size_t i = 0; i < device_copies_.size(); ++i) {
    if (!HandlesCopy(i)) continue;
    const Geometry& g = copies_.actives()[i].geometry;
    taken += g.ToSource(LocalBytesBefore(g, end) - LocalBytesBefore(g, offset));
  }
  if (taken < data.size() / 2) return false;
  const std::span<std::byte> room = slabs_.StageBlock(offset, data.size());
  if (room.empty()) return false;
  StreamCopy(room.data(), data.data(), data.size());
  for (const SlabCopy& to : slab_copies_) slabs_.CopyFromBlock(to.slab, to.copy);
  return true;
}

}  // namespace ckptd
