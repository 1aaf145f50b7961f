#include "common/plan/plan_match.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "common/layout/validate.h"

namespace ckptd {
namespace {

// Bounds the work for tensors whose copies are not equal as they stand. Beyond, they count as
// different.
constexpr uint64_t kMostRuns = 16'000'000;

// One contiguous run of bytes, cast on its way.
struct Run {
  uint64_t slab_offset = 0;  // from the first byte of its tensor
  uint32_t file = 0;
  uint64_t file_offset = 0;
  uint64_t bytes = 0;  // in the file
  uint64_t slab_bytes = 0;
  bool operator==(const Run&) const = default;
};

// The copies of each tensor of a plan, counted from its first byte.
class Copies {
 public:
  explicit Copies(const RankPlan& plan) : plan_(plan), order_(plan.ops.size()) {
    std::iota(order_.begin(), order_.end(), 0u);
    std::sort(order_.begin(), order_.end(), [&ops = plan.ops](uint32_t a, uint32_t b) {
      return std::tie(ops[a].tensor, ops[a].slab_offset) < std::tie(ops[b].tensor, ops[b].slab_offset);
    });
    begins_.resize(plan.tensors.size() + 1, static_cast<uint32_t>(order_.size()));
    for (size_t i = order_.size(); i-- > 0;) begins_[plan.ops[order_[i]].tensor] = static_cast<uint32_t>(i);
    for (size_t i = begins_.size() - 1; i-- > 0;) begins_[i] = std::min(begins_[i], begins_[i + 1]);
  }

  std::vector<CopyOp> Of(uint32_t tensor) const {
    std::vector<CopyOp> copies;
    for (uint32_t i = begins_[tensor]; i < begins_[tensor + 1]; ++i) {
      CopyOp& copy = copies.emplace_back(plan_.ops[order_[i]]);
      copy.slab_offset -= plan_.tensors[tensor].offset;
    }
    return copies;
  }

 private:
  const RankPlan& plan_;
  std::vector<uint32_t> order_;   // by tensor, then as they lie in it
  std::vector<uint32_t> begins_;  // of each tensor in order_, and the end
};

bool SameCopy(const CopyOp& a, const CopyOp& b) {
  const auto dims = static_cast<std::ptrdiff_t>(a.dims);
  const auto same = [dims](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.begin() + dims, y.begin());
  };
  return a.file == b.file && a.from == b.from && a.to == b.to && a.swap == b.swap && a.negate == b.negate &&
         a.file_offset == b.file_offset &&
         a.slab_offset == b.slab_offset && a.run_bytes == b.run_bytes && a.dims == b.dims &&
         same(a.count, b.count) && same(a.file_stride, b.file_stride) &&
         same(a.slab_stride, b.slab_stride);
}

void AddRuns(const CopyOp& copy, std::vector<Run>& runs) {
  const uint64_t count = copy.runs();
  const uint64_t slab_bytes = copy.target_bytes() / count;
  for (uint64_t number = 0; number < count; ++number) {
    Run run{copy.slab_offset, copy.file, copy.file_offset, copy.run_bytes, slab_bytes};
    uint64_t rest = number;
    for (uint32_t dim = copy.dims; dim-- > 0;) {
      const uint64_t at = rest % copy.count[dim];
      rest /= copy.count[dim];
      run.file_offset += at * copy.file_stride[dim];
      run.slab_offset += at * copy.slab_stride[dim];
    }
    runs.push_back(run);
  }
}

// As the bytes lie in the slab, each as long as it can be: what is left of how they were spelled.
std::vector<Run> RunsOf(const std::vector<CopyOp>& copies) {
  std::vector<Run> runs;
  for (const CopyOp& copy : copies) AddRuns(copy, runs);
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return a.slab_offset < b.slab_offset; });
  size_t last = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    Run& before = runs[last];
    const Run& next = runs[i];
    if (before.file == next.file && before.file_offset + before.bytes == next.file_offset &&
        before.slab_offset + before.slab_bytes == next.slab_offset) {
      before.bytes += next.bytes;
      before.slab_bytes += next.slab_bytes;
    } else {
      runs[++last] = next;
    }
  }
  if (!runs.empty()) runs.resize(last + 1);
  return runs;
}

uint64_t CountOf(const std::vector<CopyOp>& copies) {
  return std::accumulate(copies.begin(), copies.end(), uint64_t{0},
                         [](uint64_t sum, const CopyOp& copy) { return sum + copy.runs(); });
}

class Matcher {
 public:
  Matcher(const RankPlan& resident, const RankPlan& wanted)
      : resident_(resident), wanted_(wanted), there_(resident), asked_(wanted),
        used_(resident.tensors.size()) {
    for (uint32_t i = 0; i < resident.tensors.size(); ++i) {
      by_name_.emplace(resident.tensors[i].name, i);
      for (const std::string& alias : resident.tensors[i].aliases) by_name_.emplace(alias, i);
    }
  }

  PlanMatch Match() {
    PlanMatch match;
    match.resident.reserve(wanted_.tensors.size());
    for (uint32_t i = 0; i < wanted_.tensors.size() && match.differs.empty(); ++i) {
      std::optional<uint32_t> found;
      match.differs = Find(i, found);
      if (!found.has_value()) continue;
      match.resident.push_back(*found);
      used_[*found] = true;
    }
    return match;
  }

 private:
  // Sets `found`, or says why the tensor is not there.
  std::string Find(uint32_t wanted, std::optional<uint32_t>& found) {
    const PlannedTensor& tensor = wanted_.tensors[wanted];
    std::string differs = Compare(tensor.name, wanted, found);
    for (const std::string& alias : tensor.aliases) {
      if (found.has_value()) break;
      // What is wrong with the tensor of its first name tells more.
      std::string other = Compare(alias, wanted, found);
      if (by_name_.count(tensor.name) == 0 && by_name_.count(alias) > 0) differs = std::move(other);
    }
    return found.has_value() ? std::string() : differs;
  }

  std::string Compare(const std::string& name, uint32_t wanted, std::optional<uint32_t>& found) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return fmt::format("tensor '{}' is not in it", name);
    const PlannedTensor& there = resident_.tensors[at->second];
    const PlannedTensor& asked = wanted_.tensors[wanted];
    if (used_[at->second]) {
      return fmt::format("tensor '{}' shares its memory with another one there, and is asked for "
                         "by itself",
                         name);
    }
    if (there.dtype != asked.dtype) {
      return fmt::format("tensor '{}' is {} there and asked for as {}", name, NameOf(there.dtype),
                         NameOf(asked.dtype));
    }
    if (there.bytes != asked.bytes) {
      return fmt::format("of tensor '{}' this rank has a part of shape [{}] there and asks for [{}]",
                         name, ShapeText(there.shape), ShapeText(asked.shape));
    }
    if (there.padded_bytes < asked.padded_bytes) {
      return fmt::format("tensor '{}' has {} bytes with padding there and is asked for with {}",
                         name, there.padded_bytes, asked.padded_bytes);
    }
    if (!SameBytes(at->second, wanted)) {
      return fmt::format("of tensor '{}' this rank has another part there than it asks for", name);
    }
    found = at->second;
    return {};
  }

  bool SameBytes(uint32_t there, uint32_t asked) {
    const std::vector<CopyOp> a = there_.Of(there);
    const std::vector<CopyOp> b = asked_.Of(asked);
    if (std::equal(a.begin(), a.end(), b.begin(), b.end(), SameCopy)) return true;
    // One tensor of one dtype and byte order, so all its copies cast alike.
    if (a.empty() || b.empty() || a.front().from != b.front().from ||
        a.front().swap != b.front().swap || a.front().negate != b.front().negate) {
      return false;
    }
    left_ -= std::min(left_, CountOf(a) + CountOf(b));
    return left_ > 0 && RunsOf(a) == RunsOf(b);
  }

  const RankPlan& resident_;
  const RankPlan& wanted_;
  const Copies there_;
  const Copies asked_;
  std::unordered_map<std::string_view, uint32_t> by_name_;  // aliases, too
  std::vector<bool> used_;
  uint64_t left_ = kMostRuns;
};

}  // namespace

PlanMatch MatchPlans(const RankPlan& resident, const RankPlan& wanted) {
  PlanMatch match;
  if (resident.digest == wanted.digest) {
    match.resident.resize(wanted.tensors.size());
    std::iota(match.resident.begin(), match.resident.end(), 0u);
    return match;
  }
  if (!resident.flats.empty() || !wanted.flats.empty()) {
    match.differs = fmt::format("flat parameters of FSDP1 are {}",
                                wanted.flats.empty() ? "there and not asked for"
                                : resident.flats.empty() ? "asked for and not there"
                                                         : "there that differ");
    return match;
  }
  return Matcher(resident, wanted).Match();
}

}  // namespace ckptd
