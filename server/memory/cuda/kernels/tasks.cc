#include "server/memory/cuda/kernels/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/memory/cuda/kernels/copy_ways.h"

namespace ckptd::kernels {

static_assert(kMaxDims == BlockCopy::kMaxDims);

namespace {

constexpr uint64_t kWidestUnit = 16;

absl::Status Malformed(const BlockCopy& copy, std::string_view why) {
  return MakeError(
      absl::StatusCode::kInternal, reason::kCoverage,
      fmt::format("copying source bytes from {} on in GPU memory: the copy {}; this is a defect "
                  "of the planner, report it with the layout",
                  copy.begin, why));
}

std::optional<Float> FloatOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF16:
      return Float::kF16;
    case Dtype::kBF16:
      return Float::kBF16;
    case Dtype::kF32:
      return Float::kF32;
    case Dtype::kF64:
      return Float::kF64;
    default:
      return std::nullopt;
  }
}

struct CastPair {
  Float from = Float::kF32;
  Float to = Float::kF32;
};

// Bytes of one element on both sides. 1 if nothing is cast.
struct Element {
  uint64_t source = 1;
  uint64_t target = 1;
};

// Grows `span` to `count` steps of `stride`. False if steps overlap or numbers overflow.
bool GrowSpan(uint64_t count, uint64_t stride, uint64_t& span) {
  uint64_t steps = 0;
  return (count == 1 || stride >= span) && !__builtin_mul_overflow(count - 1, stride, &steps) &&
         !__builtin_add_overflow(steps, span, &span);
}

absl::Status Check(const BlockCopy& copy, const Element& element) {
  if (copy.dims > kMaxDims) return Malformed(copy, "has too many loops");
  if (copy.run_bytes == 0 || copy.run_bytes % element.source != 0) {
    return Malformed(copy, "has runs that are not whole elements");
  }
  uint64_t source_span = copy.run_bytes;
  uint64_t target_span = 0;
  if (__builtin_mul_overflow(copy.run_bytes / element.source, element.target, &target_span)) {
    return Malformed(copy, "is longer than 64 bits count");
  }
  uint64_t bytes = copy.run_bytes;
  for (uint32_t d = copy.dims; d-- > 0;) {
    if (copy.count[d] == 0 || copy.source_stride[d] % element.source != 0 ||
        copy.target_stride[d] % element.target != 0 ||
        !GrowSpan(copy.count[d], copy.source_stride[d], source_span) ||
        !GrowSpan(copy.count[d], copy.target_stride[d], target_span) ||
        __builtin_mul_overflow(bytes, copy.count[d], &bytes)) {
      return Malformed(copy, "has loops that overlap or cut elements");
    }
  }
  uint64_t end = 0;
  if (__builtin_add_overflow(copy.begin, source_span, &end) ||
      __builtin_add_overflow(copy.target, target_span, &end)) {
    return Malformed(copy, "is longer than 64 bits count");
  }
  if (target_span > copy.room) return Malformed(copy, "leaves its tensor");
  // Tensors may have odd offsets in files, but never in slabs.
  if (copy.target % element.target != 0) return Malformed(copy, "casts to an odd address");
  return absl::OkStatus();
}

// Bytes of the copy's runs that lie before a position of the source.
uint64_t BytesBefore(const BlockCopy& copy, uint64_t position) {
  if (position <= copy.begin) return 0;
  uint64_t rest = position - copy.begin;
  uint64_t runs = 0;
  for (uint32_t d = 0; d < copy.dims; ++d) {
    // A loop of one step may have any stride, even 0.
    const uint64_t at =
        copy.count[d] == 1 ? 0 : std::min(rest / copy.source_stride[d], copy.count[d] - 1);
    rest -= at * copy.source_stride[d];
    runs = runs * copy.count[d] + at;
  }
  return runs * copy.run_bytes + std::min(rest, copy.run_bytes);
}

// The largest power of two that divides all numbers or-ed into `ored`, at most kWidestUnit.
uint64_t CommonUnit(uint64_t ored) {
  return std::min(kWidestUnit, uint64_t{1} << std::min(std::countr_zero(ored), 63));
}

// Or-ed positions of all runs: the start of each run is a multiple of its lowest bit.
struct Alignment {
  uint64_t source = 0;
  uint64_t target = 0;
  uint64_t run = 0;
};

Alignment AlignmentOf(const CopyTask& task) {
  // With a single run, the run's length does not matter for alignment.
  Alignment all = {task.source, task.target, task.dims == 0 ? 0 : task.run};
  for (uint32_t d = 0; d < task.dims; ++d) {
    if (task.count[d] == 1) continue;
    all.source |= task.source_stride[d];
    all.target |= task.target_stride[d];
  }
  return all;
}

// The way of a copy's middle, and of its ends.
struct Units {
  uint64_t elements = 1;  // elements per unit; a power of two
  uint32_t way = 0;
  uint32_t end_way = 0;  // the way for single elements
};

// Aligned units of this width are not widened to unaligned ones. Unaligned sources are read
// twice, and no GPU has yet been seen to find pinned memory in its cache the second time.
constexpr uint64_t kAlignedEnough = 8;

// Units may be wider than the alignment of sources, but never than that of targets. Unaligned
// units of two bytes and less are not worth it.
Units VerbatimUnits(const Alignment& all) {
  const uint64_t unit = CommonUnit(all.target | all.run);
  const uint64_t straight = CommonUnit(unit | all.source);
  const bool unaligned = straight < kAlignedEnough && unit > straight && unit >= 4;
  const uint64_t bytes = unaligned ? unit : straight;
  return {bytes, VerbatimWay(static_cast<uint32_t>(std::countr_zero(bytes)), unaligned), 0};
}

Units CastUnits(const Alignment& all, const CastPair& cast) {
  const uint64_t wide = WideElements(cast.from, cast.to);
  const uint64_t from = kernels::SizeOf(cast.from);
  const uint64_t to = kernels::SizeOf(cast.to);
  const auto way = [&cast](Elements elements) { return CastWay(cast.from, cast.to, elements); };
  const uint32_t single = way(all.source % from != 0 ? Elements::kUnaligned : Elements::kSingle);
  const auto fits = [&](uint64_t elements) {
    return all.target % (elements * to) == 0 && all.run % elements == 0;
  };
  const auto lies_straight = [&](uint64_t elements) { return all.source % (elements * from) == 0; };
  if (fits(2 * wide) && lies_straight(2 * wide)) return {2 * wide, way(Elements::kWidest), single};
  const bool straight = fits(wide) && lies_straight(wide);
  if (fits(2 * wide) && !(straight && wide * from >= kAlignedEnough)) {
    return {2 * wide, way(Elements::kWidestUnaligned), single};
  }
  return straight ? Units{wide, way(Elements::kWide), single} : Units{1, single, single};
}

// Appends elements [first, last) of `task`, which counts in elements, as units of `unit`
// elements. `unit` divides both.
void Append(const CopyTask& task, uint64_t first, uint64_t last, uint64_t unit, uint32_t way,
            std::vector<CopyTask>& tasks) {
  if (first == last) return;
  CopyTask& added = tasks.emplace_back(task);
  added.way = way;
  added.first = first / unit;
  added.last = last / unit;
  // In a single run, only units before the last one are counted.
  added.run = task.dims == 0 ? added.last : task.run / unit;
}

// Appends elements [begin, end): the widest units in the middle, single elements at the ends.
void AppendAll(const CopyTask& task, uint64_t begin, uint64_t end, const Units& units,
               std::vector<CopyTask>& tasks) {
  const uint64_t unit = units.elements;
  const uint64_t up = std::min((begin + unit - 1) / unit * unit, end);
  const uint64_t down = std::max(end / unit * unit, up);
  Append(task, begin, up, 1, units.end_way, tasks);
  Append(task, up, down, unit, units.way, tasks);
  Append(task, down, end, 1, units.end_way, tasks);
}

// The whole copy, in elements.
CopyTask TaskOf(const SourceBlock& block, const BlockCopy& copy, const Element& element) {
  CopyTask task = {};
  // Where the copy's first byte would lie. Wraps if that is before the block.
  task.source = block.address + (copy.begin - block.begin);
  task.target = copy.target;
  task.run = copy.run_bytes / element.source;
  task.dims = copy.dims;
  std::copy(copy.count.begin(), copy.count.end(), task.count);
  std::copy(copy.source_stride.begin(), copy.source_stride.end(), task.source_stride);
  std::copy(copy.target_stride.begin(), copy.target_stride.end(), task.target_stride);
  return task;
}

}  // namespace

absl::Status AppendTasks(const SourceBlock& block, const BlockCopy& copy,
                         std::vector<CopyTask>& tasks) {
  Element element;
  std::optional<CastPair> cast;
  if (copy.from != copy.to) {
    const auto from = FloatOf(copy.from);
    const auto to = FloatOf(copy.to);
    if (!from || !to) return Malformed(copy, "casts types that have no cast");
    cast = CastPair{*from, *to};
    element = {kernels::SizeOf(*from), kernels::SizeOf(*to)};
  }
  CKPTD_RETURN_IF_ERROR(Check(copy, element));
  uint64_t end = 0;
  if (__builtin_add_overflow(block.begin, block.bytes, &end)) {
    return Malformed(copy, "comes from a block that is longer than 64 bits count");
  }
  const uint64_t first = BytesBefore(copy, block.begin);
  const uint64_t last = BytesBefore(copy, end);
  if (first % element.source != 0 || last % element.source != 0) {
    return Malformed(copy, "casts an element that its block cuts");
  }
  const CopyTask task = TaskOf(block, copy, element);
  const Alignment all = AlignmentOf(task);
  AppendAll(task, first / element.source, last / element.source,
            cast ? CastUnits(all, *cast) : VerbatimUnits(all), tasks);
  return absl::OkStatus();
}

uint64_t TilesOf(const CopyTask& task) {
  const uint64_t tile = ShapeOf(task.way).tile_units();
  const uint64_t units = task.last - task.first;
  return units / tile + (units % tile != 0 ? 1 : 0);
}

size_t TableBytes(size_t tasks) { return tasks * (sizeof(CopyTask) + sizeof(uint32_t)); }

absl::StatusOr<uint32_t> WriteTable(std::span<const CopyTask> tasks, std::span<std::byte> out) {
  if (out.size() < TableBytes(tasks.size())) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     fmt::format("writing a table of {} copies: it takes {} bytes, and there is "
                                 "room for {}",
                                 tasks.size(), TableBytes(tasks.size()), out.size()));
  }
  std::byte* const first_tile = out.data() + tasks.size() * sizeof(CopyTask);
  uint64_t tiles = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto first = static_cast<uint32_t>(tiles);
    std::memcpy(out.data() + i * sizeof(CopyTask), &tasks[i], sizeof(CopyTask));
    std::memcpy(first_tile + i * sizeof first, &first, sizeof first);
    const uint64_t more = TilesOf(tasks[i]);
    if (more > kMaxTiles - tiles) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("writing a table of {} copies: they are more than one launch "
                                   "takes; use smaller blocks",
                                   tasks.size()));
    }
    tiles += more;
  }
  return static_cast<uint32_t>(tiles);
}

TaskTable TableAt(uint64_t address, uint32_t tasks) {
  TaskTable table = {};
  table.tasks = reinterpret_cast<const CopyTask*>(address);
  table.first_tile =
      reinterpret_cast<const uint32_t*>(address + uint64_t{tasks} * sizeof(CopyTask));
  table.count = tasks;
  return table;
}

}  // namespace ckptd::kernels
