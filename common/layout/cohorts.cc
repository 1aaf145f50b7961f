#include <algorithm>
#include <memory>
#include <vector>

#include "common/layout/layout.h"
#include "common/layout/validate.h"

namespace ckptd {
namespace {

bool Alike(const RankLayout& a, const RankLayout& b) {
  if (a.world_size != b.world_size || a.skip_missing != b.skip_missing ||
      a.refuse_unexpected != b.refuse_unexpected || a.meshes != b.meshes ||
      a.shardings != b.shardings || a.flats != b.flats || a.targets != b.targets) {
    return false;
  }
  return std::all_of(a.meshes.begin(), a.meshes.end(), [&](const Mesh& mesh) {
    // An invalid mesh is refused later, when it is planned with.
    return CheckMeshShape(mesh).ok() && CoordinatesOf(mesh, a.rank).has_value() ==
                                            CoordinatesOf(mesh, b.rank).has_value();
  });
}

}  // namespace

std::vector<Cohort> JoinEqual(std::span<const std::shared_ptr<const RankLayout>> layouts) {
  std::vector<Cohort> cohorts;
  for (const auto& layout : layouts) {
    if (!cohorts.empty() && Alike(*cohorts.back().layout, *layout)) {
      cohorts.back().ranks.push_back(layout->rank);
    } else {
      cohorts.push_back({layout, {layout->rank}});
    }
  }
  return cohorts;
}

}  // namespace ckptd
