// Plans as messages: a daemon answers with them, and ckptctl prints those that it makes itself. Pure;
// thread-safe.
#ifndef CKPTD_COMMON_WIRE_PLAN_H_
#define CKPTD_COMMON_WIRE_PLAN_H_

#include "ckptd/v1/checkpoint_service.pb.h"
#include "common/devices/device_map.h"
#include "common/plan/group_plan.h"

namespace ckptd {

// All ranks of the plan, and the files of its index.
v1::PlanLoadResponse ToProto(const GroupPlan& plan);
v1::DeviceMap ToProto(const DeviceMap& map);

}  // namespace ckptd

#endif  // CKPTD_COMMON_WIRE_PLAN_H_
