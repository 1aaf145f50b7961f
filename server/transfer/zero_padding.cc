#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "server/transfer/slab_map.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// Calls visit(tensor, offset, bytes) for all memory that no tensor's local bytes cover. `tensor`
// is the number of the tensor before that memory (or of the first tensor). Covers the segments to
// their ends, not just slab_bytes, because clients map whole segments.
template <typename Visit>
void ForEachGap(const RankPlan& plan, uint64_t slab_bytes, const Visit& visit) {
  struct Covered {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t tensor = 0;
  };
  std::vector<Covered> covered;
  for (uint32_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& tensor = plan.tensors[i];
    if (tensor.bytes == 0) continue;
    covered.push_back({tensor.offset, tensor.offset + tensor.bytes, i});
  }
  std::sort(covered.begin(), covered.end(),
            [](const Covered& a, const Covered& b) { return a.begin < b.begin; });
  uint32_t behind = covered.empty() ? 0 : covered.front().tensor;
  covered.push_back({slab_bytes, slab_bytes, 0});
  uint64_t at = 0;
  for (const Covered& range : covered) {
    const uint64_t until = std::min(range.begin, slab_bytes);
    if (until > at) visit(behind, at, until - at);
    at = std::max(at, range.end);
    behind = range.tensor;
  }
}

// Bytes that are looked at in one step.
constexpr uint64_t kStepBytes = 4 << 20;

bool IsZero(std::span<const std::byte> data) {
  // If the data equals itself one byte later, all bytes equal the first one.
  return data[0] == std::byte{0} && std::memcmp(data.data(), data.data() + 1, data.size() - 1) == 0;
}

// A driver call takes about as long as a GPU takes to clear this many bytes.
constexpr uint64_t kBytesPerCall = 4 << 20;

absl::Status ZeroStaged(const RankPlan& plan, StagedMemory& memory) {
  std::vector<SlabSpan> gaps;
  ForEachGap(plan, memory.bytes(), [&gaps](uint32_t, uint64_t offset, uint64_t bytes) {
    gaps.push_back({offset, bytes});
  });
  if (gaps.size() > 1 + memory.bytes() / kBytesPerCall) gaps = {{0, memory.bytes()}};
  return memory.Zero(gaps);
}

}  // namespace

absl::Status ZeroPadding(const RankPlan& plan, const SlabView& slab) {
  if (slab.staged != nullptr) return ZeroStaged(plan, *slab.staged);
  const SlabMap map(slab);
  ForEachGap(plan, map.bytes(), [&map](uint32_t, uint64_t offset, uint64_t bytes) {
    map.ForEach(offset, bytes, [](std::byte* data, size_t n) { std::memset(data, 0, n); });
  });
  return absl::OkStatus();
}

absl::StatusOr<std::set<uint32_t>> DirtyPadding(const RankPlan& plan, const SlabView& slab) {
  const SlabMap map(slab);
  std::set<uint32_t> dirty;
  absl::Status status;
  std::vector<std::byte> scratch;
  ForEachGap(plan, map.bytes(), [&](uint32_t tensor, uint64_t offset, uint64_t bytes) {
    for (uint64_t done = 0; done < bytes && status.ok(); done += kStepBytes) {
      const auto n = static_cast<size_t>(std::min(bytes - done, kStepBytes));
      const auto data = map.Read(offset + done, n, scratch);
      status = data.status();
      if (status.ok() && !IsZero(*data)) dirty.insert(tensor);
    }
  });
  if (!status.ok()) return status;
  return dirty;
}

}  // namespace ckptd
