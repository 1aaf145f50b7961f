#include "server/transfer/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "common/base/checked_math.h"
#include "common/base/digest.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/slab_map.h"

namespace ckptd {
namespace {

// Each block that is read looks at all copies of its item. The bound keeps thousands of tiny
// tensors from costing quadratic time.
constexpr uint32_t kMaxCopiesPerItem = 4096;
constexpr uint64_t kMaxRunsPerItem = 1 << 16;
constexpr uint64_t kMinItemBytes = 64 << 10;
constexpr uint64_t kMaxItemBytes = 32 << 20;
// Bounds the work for a sparse file, where a few bytes at both ends may lie exabytes apart.
constexpr uint64_t kMaxItems = 1 << 20;
constexpr uint64_t kJoinGap = 64 << 10;  // copies further apart are in different items

struct Candidate {
  const CopyOp* op = nullptr;
  uint64_t tensor_offset = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  Destination destination;
};

absl::Status DoesNotFit(const RankPlan& plan, const std::string& tensor, std::string_view why) {
  return MakeError(absl::StatusCode::kInternal, reason::kCoverage,
                   fmt::format("placing tensor {} of rank {}: {}; this is a defect of the planner, "
                               "report it with the layout",
                               tensor, plan.rank, why),
                   {{"tensor", tensor}, {"rank", std::to_string(plan.rank)}});
}

absl::Status CheckSlab(const TransferTarget& target) {
  const uint64_t room = SlabMap(target.slab).bytes();
  for (const PlannedTensor& tensor : target.plan->tensors) {
    const uint64_t bytes = std::max(tensor.bytes, tensor.padded_bytes);
    if (bytes > room || tensor.offset > room - bytes) {
      return DoesNotFit(*target.plan, tensor.name, "it reaches past the end of the slab");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Candidate> CheckOp(const CheckpointIndex& index, const RankPlan& plan,
                                  const CopyOp& op) {
  if (op.tensor >= plan.tensors.size()) return DoesNotFit(plan, "?", "the plan has no such tensor");
  const PlannedTensor& tensor = plan.tensors[op.tensor];
  if (op.file >= index.files.size()) {
    return DoesNotFit(plan, tensor.name, "the source has no such file");
  }
  CKPTD_ASSIGN_OR_RETURN(const Geometry g, MakeGeometry(op, tensor.offset));
  const uint64_t local_span = [&g] {
    uint64_t span = g.run_local;
    for (uint32_t d = 0; d < g.dims; ++d) span += (g.count[d] - 1) * g.local_stride[d];
    return span;
  }();
  if (g.runs > 0 && g.local + local_span > tensor.bytes) {
    return DoesNotFit(plan, tensor.name, "a copy reaches past its end");
  }
  const SourceFile& file = index.files[op.file];
  if (g.end > file.bytes) {
    return MakeError(
        absl::StatusCode::kDataLoss, reason::kSourceInvalid,
        fmt::format("reading tensor {} of {}: its bytes end at {}, past the file's end "
                    "at {}; the file is damaged, fetch it again",
                    tensor.name, file.path, g.end, file.bytes),
        {{"file", file.path}, {"tensor", tensor.name}});
  }
  Candidate candidate;
  candidate.op = &op;
  candidate.tensor_offset = tensor.offset;
  candidate.begin = g.begin;
  candidate.end = g.end;
  return candidate;
}

absl::StatusOr<std::vector<Candidate>> CollectCandidates(const CheckpointIndex& index,
                                                         std::span<const TransferTarget> targets) {
  std::vector<Candidate> all;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t].sink == nullptr) CKPTD_RETURN_IF_ERROR(CheckSlab(targets[t]));
    for (const CopyOp& op : targets[t].plan->ops) {
      CKPTD_ASSIGN_OR_RETURN(Candidate candidate, CheckOp(index, *targets[t].plan, op));
      if (candidate.begin == candidate.end) continue;
      candidate.destination = {static_cast<uint32_t>(t), op.tensor};
      all.push_back(candidate);
    }
  }
  // Compares everything in which two copies may differ, so that equal ones become neighbours.
  const auto key = [](const Candidate& c) {
    return std::make_tuple(c.op->file, c.begin, c.end, c.op->from, c.op->to,
                           c.op->slab_offset - c.tensor_offset, c.op->run_bytes, c.op->dims);
  };
  const auto before = [&key](const Candidate& a, const Candidate& b) { return key(a) < key(b); };
  // The copies of a single target are sorted already.
  if (!std::is_sorted(all.begin(), all.end(), before)) {
    std::stable_sort(all.begin(), all.end(), before);
  }
  return all;
}

uint64_t TensorBytes(std::span<const TransferTarget> targets, const Destination& d) {
  return targets[d.target].plan->tensors[d.tensor].bytes;
}

// Joins neighbours that copy the same bytes to the same local places.
absl::Status ShareCopies(std::span<const TransferTarget> targets,
                         const std::vector<Candidate>& candidates, Schedule& schedule) {
  Geometry last;
  for (const Candidate& c : candidates) {
    CKPTD_ASSIGN_OR_RETURN(const Geometry g, MakeGeometry(*c.op, c.tensor_offset));
    const bool same =
        !schedule.copies.empty() && schedule.copies.back().op->file == c.op->file &&
        SameCopy(g, last) &&
        TensorBytes(targets, schedule.destinations.back()) == TensorBytes(targets, c.destination);
    if (!same) {
      SharedCopy copy;
      copy.op = c.op;
      copy.tensor_offset = c.tensor_offset;
      copy.begin = c.begin;
      copy.end = c.end;
      copy.first_destination = static_cast<uint32_t>(schedule.destinations.size());
      schedule.copies.push_back(copy);
      last = g;
    }
    schedule.destinations.push_back(c.destination);
    ++schedule.copies.back().destinations;
  }
  for (size_t i = 0; i < schedule.copies.size(); ++i) {
    const SharedCopy& copy = schedule.copies[i];
    const bool follows = i > 0 && schedule.copies[i - 1].op->file == copy.op->file;
    schedule.reach.push_back(follows ? std::max(schedule.reach[i - 1], copy.end) : copy.end);
  }
  return absl::OkStatus();
}

// The positions of the elements that a zone's copies convert. Cuts must not split one.
struct ElementGrid {
  uint64_t size = 1;
  uint64_t at = 0;  // an element starts here
};

// A zone is a set of copies that overlap in the file. Returns its grid, or an error if its copies
// disagree where elements start.
absl::StatusOr<ElementGrid> GridOf(const Schedule& schedule, const WorkItem& zone) {
  ElementGrid grid;
  for (uint32_t i = zone.first_copy; i < zone.last_copy; ++i) {
    const SharedCopy& copy = schedule.copies[i];
    if (!copy.op->converts()) continue;
    const uint64_t size = copy.op->casts() ? BitsOf(copy.op->from) / 8 : copy.op->ConvertedBytes();
    if ((copy.begin - grid.at) % std::min(grid.size, size) != 0) {
      return MakeError(absl::StatusCode::kInternal, reason::kCoverage,
                       fmt::format("reading a plan: copies of file {} near byte {} disagree where "
                                   "elements start; the checkpoint's tensors overlap, save it anew",
                                   zone.file, copy.begin));
    }
    if (size > grid.size) grid = {size, copy.begin};
  }
  return grid;
}

// The positions where a zone may be cut.
struct Cutter {
  uint64_t base = 0;  // cuts are at base + k * step
  uint64_t step = kItemBytes;

  uint64_t NextAfter(uint64_t position) const {
    if (position < base) return base;
    return CheckedAdd(position - (position - base) % step, step).value_or(UINT64_MAX);
  }
};

// A contiguous copy is cut at the digest blocks of its tensor, so that a block is hashed from the
// source while it is in cache.
Cutter CutAtBlocks(const Geometry& g) {
  const uint64_t to_boundary =
      (kDigestBlockBytes - g.local % kDigestBlockBytes) % kDigestBlockBytes;
  Cutter cutter;
  cutter.base = g.begin + g.ToSource(to_boundary);
  cutter.step = g.ToSource(kDigestBlockBytes);
  return cutter;
}

// Cuts rows whose columns go to different copies. If the column width divides a block, rows can
// be cut so that every copy's blocks are whole. Otherwise items of several blocks leave few
// blocks that straddle a cut. Such blocks are hashed from the slab, in a second pass over its
// memory. `runs` counts the runs of all copies of the zone.
Cutter CutAtRows(const WorkItem& zone, const Geometry& g, uint64_t runs) {
  const uint64_t run_span = std::max<uint64_t>(1, (zone.end - zone.begin) / runs);
  const uint64_t most = run_span * kMaxRunsPerItem;
  Cutter cutter;
  cutter.step = std::clamp(most, kMinItemBytes, kItemBytes);
  if (g.dims == 1 && g.dense_local) {
    const uint64_t blocks = kDigestBlockBytes % g.run_local == 0 ? 1 : 4;
    const uint64_t rows = blocks * kDigestBlockBytes / g.run_local;
    const uint64_t row = g.source_stride[0];
    // A wider item would keep one thread busy when the others have nothing left.
    if (rows > 0 && row <= std::min(kMaxItemBytes, most) / rows) cutter.step = rows * row;
  }
  cutter.base = zone.begin + cutter.step;
  return cutter;
}

class ItemBuilder {
 public:
  // `min_step`: the shortest item in bytes that a cut may leave.
  ItemBuilder(Schedule& schedule, uint64_t min_step)
      : schedule_(schedule), min_step_(min_step) {}

  // Copies [first_copy, last_copy) lie in the zone.
  absl::Status AddZone(const WorkItem& zone) {
    CKPTD_ASSIGN_OR_RETURN(const ElementGrid grid, GridOf(schedule_, zone));
    if (Joins(zone)) {
      open_.end = zone.end;
      open_.last_copy = zone.last_copy;
      return absl::OkStatus();
    }
    Flush();
    if (zone.end - zone.begin <= kItemBytes) {
      open_ = zone;
      return absl::OkStatus();
    }
    CKPTD_ASSIGN_OR_RETURN(const Cutter cutter, CutterFor(zone, grid));
    WorkItem part = zone;
    while (true) {
      part.end = std::min(cutter.NextAfter(part.begin), zone.end);
      if (part.end == zone.end) break;
      schedule_.items.push_back(part);
      part.begin = part.end;
    }
    open_ = part;
    return absl::OkStatus();
  }

  void Flush() {
    if (open_.end > open_.begin) schedule_.items.push_back(open_);
    open_ = {};
  }

 private:
  bool Joins(const WorkItem& zone) const {
    return open_.end > open_.begin && zone.file == open_.file &&
           zone.end - open_.begin <= kItemBytes && zone.begin - open_.end <= kJoinGap &&
           zone.last_copy - open_.first_copy <= kMaxCopiesPerItem;
  }

  absl::StatusOr<Cutter> CutterFor(const WorkItem& zone, const ElementGrid& grid) const;

  Schedule& schedule_;
  const uint64_t min_step_;
  WorkItem open_;
};

absl::StatusOr<Cutter> ItemBuilder::CutterFor(const WorkItem& zone, const ElementGrid& grid) const {
  uint64_t runs = 0;
  Cutter cutter;
  for (uint32_t i = zone.first_copy; i < zone.last_copy; ++i) {
    const SharedCopy& copy = schedule_.copies[i];
    CKPTD_ASSIGN_OR_RETURN(const Geometry g, MakeGeometry(*copy.op, copy.tensor_offset));
    if (g.dims == 0) {
      cutter = CutAtBlocks(g);
      break;
    }
    runs += g.runs;
    cutter = CutAtRows(zone, g, runs);
  }
  cutter.step *= CeilDivide(min_step_, cutter.step);
  cutter.base -= (cutter.base - grid.at) % grid.size;
  if (cutter.base <= zone.begin) cutter.base += cutter.step;
  return cutter;
}

// The zone of the copies from `first` on.
WorkItem ZoneAt(const Schedule& schedule, uint32_t first) {
  const auto count = static_cast<uint32_t>(schedule.copies.size());
  WorkItem zone;
  zone.file = schedule.copies[first].op->file;
  zone.begin = schedule.copies[first].begin;
  zone.end = schedule.copies[first].end;
  zone.first_copy = first;
  zone.last_copy = first + 1;
  for (; zone.last_copy < count; ++zone.last_copy) {
    const SharedCopy& next = schedule.copies[zone.last_copy];
    if (next.op->file != zone.file || next.begin >= zone.end) break;
    zone.end = std::max(zone.end, next.end);
  }
  return zone;
}

absl::Status BuildItems(Schedule& schedule) {
  const auto count = static_cast<uint32_t>(schedule.copies.size());
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count;) {
    const WorkItem zone = ZoneAt(schedule, i);
    bytes = CheckedAdd(bytes, zone.end - zone.begin).value_or(UINT64_MAX);
    i = zone.last_copy;
  }
  ItemBuilder builder(schedule, std::max<uint64_t>(1, bytes / kMaxItems));
  for (uint32_t i = 0; i < count;) {
    const WorkItem zone = ZoneAt(schedule, i);
    CKPTD_RETURN_IF_ERROR(builder.AddZone(zone));
    i = zone.last_copy;
  }
  builder.Flush();
  return absl::OkStatus();
}

}  // namespace

WorkItem ItemIn(const Schedule& schedule, uint32_t file, uint64_t begin, uint64_t end) {
  const std::span<const SharedCopy> copies = schedule.copies;
  const auto of_file = std::partition_point(copies.begin(), copies.end(), [&](const auto& copy) {
    return copy.op->file < file;
  });
  const auto last = std::partition_point(of_file, copies.end(), [&](const auto& copy) {
    return copy.op->file == file && copy.begin < end;
  });
  const auto first = std::partition_point(of_file, last, [&](const auto& copy) {
    return schedule.reach[static_cast<size_t>(&copy - copies.data())] <= begin;
  });
  WorkItem item;
  item.file = file;
  item.begin = begin;
  item.end = end;
  item.first_copy = static_cast<uint32_t>(first - copies.begin());
  item.last_copy = static_cast<uint32_t>(last - copies.begin());
  return item;
}

absl::StatusOr<Schedule> BuildSchedule(const CheckpointIndex& index,
                                       std::span<const TransferTarget> targets) {
  Schedule schedule;
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                         CollectCandidates(index, targets));
  CKPTD_RETURN_IF_ERROR(ShareCopies(targets, candidates, schedule));
  CKPTD_RETURN_IF_ERROR(BuildItems(schedule));
  return schedule;
}

}  // namespace ckptd
