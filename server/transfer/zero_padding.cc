#include <algorithm>
#include <cstring>
#include <utility>

#include "server/transfer/slab_map.h"
#include "server/transfer/transfer.h"

namespace ckptd {

void ZeroPadding(const RankPlan& plan, const SlabView& slab) {
  const SlabMap map(slab);
  std::vector<std::pair<uint64_t, uint64_t>> covered;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (tensor.bytes > 0) covered.emplace_back(tensor.offset, tensor.offset + tensor.bytes);
  }
  std::sort(covered.begin(), covered.end());
  // The memory behind a slab, not just slab_bytes: clients map whole segments.
  covered.emplace_back(map.bytes(), map.bytes());
  uint64_t at = 0;
  for (const auto& range : covered) {
    const uint64_t until = std::min(range.first, map.bytes());
    if (until > at) {
      map.ForEach(at, until - at, [](std::byte* data, size_t n) { std::memset(data, 0, n); });
    }
    at = std::max(at, range.second);
  }
}

}  // namespace ckptd
