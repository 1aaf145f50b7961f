#include "common/wire/plan.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/source/path_text.h"
#include "common/wire/sendable_text.h"

namespace ckptd {
namespace {

void AddRank(const PlannedRank& plan, v1::PlanLoadResponse& out) {
  v1::RankPlan& rank = *out.add_ranks();
  rank.set_rank(static_cast<int32_t>(plan.rank));
  rank.set_slab_bytes(plan.slab_bytes);
  rank.set_tensor_bytes(plan.tensor_bytes);
  rank.set_tensor_count(static_cast<uint32_t>(plan.tensors));
  // Rank 0 reads, and its own bytes are sent to nobody.
  rank.set_received_bytes(plan.rank == 0 ? 0 : plan.tensor_bytes);
  out.set_peak_rank_bytes(std::max(out.peak_rank_bytes(), plan.slab_bytes));
  out.set_total_slab_bytes(out.total_slab_bytes() + plan.slab_bytes);
}

}  // namespace

v1::PlanLoadResponse ToProto(const GroupPlan& plan) {
  v1::PlanLoadResponse out;
  for (const PlannedRank& rank : plan.ranks()) AddRank(rank, out);
  const std::vector<uint64_t> read = plan.ReadBytes();
  for (size_t i = 0; i < read.size(); ++i) {
    v1::FilePlan& file = *out.add_files();
    file.set_path(TextOfPath(plan.index().files[i].path));
    file.set_read_bytes(read[i]);
    out.set_storage_bytes(out.storage_bytes() + read[i]);
  }
  out.set_distinct_bytes(plan.DistinctBytes());
  out.set_plan_digest(HexDigest(plan.digest()));
  return out;
}

v1::DeviceMap ToProto(const DeviceMap& map) {
  v1::DeviceMap out;
  for (const PlacedModule& placed : map.modules) {
    v1::DeviceMap::Module& module = *out.add_modules();
    module.set_name(placed.name);
    module.set_device(placed.device);
    module.set_bytes(placed.bytes);
  }
  for (const PlacedDevice& placed : map.devices) {
    v1::DeviceMap::Device& device = *out.add_devices();
    device.set_device(placed.device);
    device.set_limit_bytes(placed.limit_bytes);
    device.set_placed_bytes(placed.placed_bytes);
  }
  out.set_total_bytes(map.total_bytes);
  out.set_largest_layer_bytes(map.largest_layer_bytes);
  for (const std::string& warning : map.warnings) out.add_warnings(SendableText(warning));
  return out;
}

}  // namespace ckptd
