// How much storage must deliver: the union of what all ops of all ranks read.
#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "common/plan/plan.h"
#include "common/plan/read_union.h"

namespace ckptd {
namespace {

constexpr uint64_t kMaxExpandedRuns = uint64_t{1} << 24;

struct Run {
  uint64_t begin = 0;
  uint64_t end = 0;
  auto operator<=>(const Run&) const = default;
};

// Length of the union of runs sorted by begin.
uint64_t UnionOf(const std::vector<Run>& runs) {
  uint64_t total = 0;
  uint64_t reached = 0;
  for (const Run& run : runs) {
    if (run.end <= reached) continue;
    total += run.end - std::max(run.begin, reached);
    reached = run.end;
  }
  return total;
}

bool SameGrid(const CopyOp& a, const CopyOp& b) {
  return a.dims == b.dims && a.count == b.count && a.file_stride == b.file_stride;
}

// Steps through the runs of one op in file order.
class RunWalker {
 public:
  explicit RunWalker(const CopyOp* op) : op_(op), offset_(op->file_offset) {}
  Run run() const { return {offset_, offset_ + op_->run_bytes}; }
  // False when there are no more.
  bool Next() {
    for (uint32_t dim = op_->dims; dim-- > 0;) {
      offset_ += op_->file_stride[dim];
      if (++at_[dim] < op_->count[dim]) return true;
      offset_ -= op_->file_stride[dim] * op_->count[dim];
      at_[dim] = 0;
    }
    return false;
  }
  bool operator>(const RunWalker& other) const { return offset_ > other.offset_; }

 private:
  const CopyOp* op_;
  uint64_t offset_;
  std::array<uint64_t, CopyOp::kMaxDims> at_ = {};
};

// Ops whose runs repeat on the same grid: the union of the first runs, as often
// as the grid has points. Needs that no first run reaches the next grid point.
bool CountOnOneGrid(const std::vector<const CopyOp*>& ops, uint64_t& total) {
  const CopyOp& first = *ops.front();
  std::vector<Run> runs;
  for (const CopyOp* op : ops) {
    if (!SameGrid(*op, first)) return false;
    runs.push_back({op->file_offset, op->file_offset + op->run_bytes});
  }
  uint64_t reach = 0;
  for (const Run& run : runs) reach = std::max(reach, run.end - first.file_offset);
  for (uint32_t dim = first.dims; dim-- > 0;) {
    if (reach > first.file_stride[dim]) return false;
    reach += (first.count[dim] - 1) * first.file_stride[dim];
  }
  total = UnionOf(runs) * first.runs();
  return true;
}

// Merges the runs of all ops without storing them.
uint64_t CountByMerging(const std::vector<const CopyOp*>& ops) {
  std::priority_queue<RunWalker, std::vector<RunWalker>, std::greater<>> heap;
  for (const CopyOp* op : ops) heap.emplace(op);
  uint64_t total = 0;
  uint64_t reached = 0;
  while (!heap.empty()) {
    RunWalker walker = heap.top();
    heap.pop();
    const Run run = walker.run();
    if (run.end > reached) {
      total += run.end - std::max(run.begin, reached);
      reached = run.end;
    }
    if (walker.Next()) heap.push(walker);
  }
  return total;
}

// Distinct bytes of ops whose hulls touch each other, sorted by file offset.
uint64_t CountGroup(std::vector<const CopyOp*> ops) {
  uint64_t total = 0;
  if (ops.size() == 1) return ops.front()->source_bytes();
  if (CountOnOneGrid(ops, total)) return total;
  // Equal reads on many ranks, and slices of what another rank reads whole, add
  // nothing.
  std::vector<Run> solid;
  for (const CopyOp* op : ops) {
    if (op->dims == 0) solid.push_back({op->file_offset, op->file_end()});
  }
  const auto covered = [&solid](const CopyOp* op) {
    return op->dims != 0 && std::any_of(solid.begin(), solid.end(), [op](const Run& run) {
             return run.begin <= op->file_offset && op->file_end() <= run.end;
           });
  };
  ops.erase(std::remove_if(ops.begin(), ops.end(), covered), ops.end());
  if (CountOnOneGrid(ops, total)) return total;
  uint64_t runs = 0;
  uint64_t bytes = 0;
  for (const CopyOp* op : ops) {
    runs += op->runs();
    bytes += op->source_bytes();
  }
  if (runs <= kMaxExpandedRuns) return CountByMerging(ops);
  uint64_t end = 0;
  for (const CopyOp* op : ops) end = std::max(end, op->file_end());
  return std::min(bytes, end - ops.front()->file_offset);
}

// What ops are sorted by, beside the op: sorting does not touch the ops themselves.
struct Keyed {
  uint32_t file = 0;
  uint64_t file_offset = 0;
  const CopyOp* op = nullptr;
};

// Those that read nothing are left out: they have no first run.
std::vector<Keyed> SortedOps(std::span<const CopyOp* const> all) {
  std::vector<Keyed> ops;
  ops.reserve(all.size());
  for (const CopyOp* op : all) {
    if (op->runs() > 0) ops.push_back({op->file, op->file_offset, op});
  }
  std::sort(ops.begin(), ops.end(), [](const Keyed& a, const Keyed& b) {
    return std::tie(a.file, a.file_offset) < std::tie(b.file, b.file_offset);
  });
  return ops;
}

}  // namespace

std::vector<uint64_t> ReadUnion(std::span<const CopyOp* const> all, size_t files) {
  const std::vector<Keyed> ops = SortedOps(all);
  std::vector<uint64_t> bytes(files, 0);
  std::vector<const CopyOp*> group;
  for (size_t begin = 0; begin < ops.size();) {
    const uint32_t file = ops[begin].file;
    uint64_t reached = 0;
    group.clear();
    size_t end = begin;
    do {
      group.push_back(ops[end].op);
      reached = std::max(reached, ops[end].op->file_end());
      ++end;
    } while (end < ops.size() && ops[end].file == file && ops[end].file_offset < reached);
    if (file < bytes.size()) bytes[file] += CountGroup(group);
    begin = end;
  }
  return bytes;
}

std::vector<uint64_t> ReadBytesPerFile(const CheckpointIndex& index,
                                       const std::vector<RankPlan>& plans) {
  std::vector<const CopyOp*> ops;
  for (const RankPlan& plan : plans) {
    for (const CopyOp& op : plan.ops) ops.push_back(&op);
  }
  return ReadUnion(ops, index.files.size());
}

}  // namespace ckptd
