#include <algorithm>
#include <cstring>
#include <utility>

#include "server/transfer/slab_map.h"
#include "server/transfer/transfer.h"

namespace ckptd {
namespace {

// Calls visit(tensor, data, bytes) for all memory that no tensor's local bytes cover;
// `tensor` is the number of the one it lies behind (the first one's for what lies in
// front of it). The memory behind a slab, not just slab_bytes: clients map whole
// segments.
template <typename Visit>
void ForEachGap(const RankPlan& plan, const SlabMap& map, const Visit& visit) {
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
  covered.push_back({map.bytes(), map.bytes(), 0});
  uint64_t at = 0;
  for (const Covered& range : covered) {
    const uint64_t until = std::min(range.begin, map.bytes());
    if (until > at) {
      map.ForEach(at, until - at,
                  [&](std::byte* data, size_t n) { visit(behind, data, n); });
    }
    at = std::max(at, range.end);
    behind = range.tensor;
  }
}

bool IsZero(const std::byte* data, size_t bytes) {
  // Equal to itself, one byte further: all bytes are the first one.
  return data[0] == std::byte{0} && std::memcmp(data, data + 1, bytes - 1) == 0;
}

}  // namespace

void ZeroPadding(const RankPlan& plan, const SlabView& slab) {
  ForEachGap(plan, SlabMap(slab),
             [](uint32_t, std::byte* data, size_t n) { std::memset(data, 0, n); });
}

std::set<uint32_t> DirtyPadding(const RankPlan& plan, const SlabView& slab) {
  std::set<uint32_t> dirty;
  ForEachGap(plan, SlabMap(slab), [&dirty](uint32_t tensor, std::byte* data, size_t n) {
    if (!IsZero(data, n)) dirty.insert(tensor);
  });
  return dirty;
}

}  // namespace ckptd
