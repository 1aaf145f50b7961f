// Planning without loading: what a load would read, and what each rank would get.
#ifndef CKPTD_SERVER_NODE_DRY_RUN_H_
#define CKPTD_SERVER_NODE_DRY_RUN_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/devices/device_map.h"
#include "common/devices/module_tree.h"
#include "common/plan/group_plan.h"
#include "common/source/access.h"
#include "server/protocol/domain.h"

namespace ckptd {

// Different copies of all ranks together. Time and memory grow with them.
inline constexpr size_t kMaxDryRunCopies = 4'000'000;

// Rule form: plans all ranks. Rank form: only rank `own`. Opens the source. Errors: WRONG_RANK
// for a layout of another rank; those of OpenCheckpoint, LayoutRules and GroupPlan; DeadlineExceeded DEADLINE; InvalidArgument
// INVALID_REQUEST if the plan has more than `max_copies` copies.
absl::StatusOr<GroupPlan> PlanDry(const LoadRequest& request, uint32_t own, Deadline deadline,
                                  size_t max_copies = kMaxDryRunCopies,
                                  const SourceAccess& access = {});

// The input of a plan for a device map.
struct DeviceMapRequest {
  std::string source;
  ModuleTreeOptions tree;
  DeviceMapOptions devices;
};

// Opens the source. Errors: those of OpenCheckpoint, ModuleTree and PlanDeviceMap.
absl::StatusOr<DeviceMap> PlanDevices(const DeviceMapRequest& request,
                                      const SourceAccess& access = {});

}  // namespace ckptd

#endif  // CKPTD_SERVER_NODE_DRY_RUN_H_
