// What is asked of a device map, from the message.
#include <fmt/format.h>

#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

absl::StatusOr<DeviceMapWay> FromProto(v1::DeviceMapRules::Way way) {
  switch (way) {
    case v1::DeviceMapRules::WAY_UNSPECIFIED:
    case v1::DeviceMapRules::WAY_BALANCED:
      return DeviceMapWay::kBalanced;
    case v1::DeviceMapRules::WAY_BALANCED_LOW_0:
      return DeviceMapWay::kBalancedLowZero;
    case v1::DeviceMapRules::WAY_SEQUENTIAL:
      return DeviceMapWay::kSequential;
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                       fmt::format("reading a device map's rules: way {} is unknown; use one of "
                                   "this daemon's version",
                                   static_cast<int>(way)));
  }
}

}  // namespace

absl::StatusOr<DeviceMapRequest> DeviceMapRequestFrom(const v1::PlanLoadRequest& request) {
  const v1::DeviceMapRules& rules = request.device_map();
  if (request.spec().has_layout()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                     "planning devices: the request has a layout, too, which is for ranks; leave "
                     "one of them out");
  }
  DeviceMapRequest out;
  out.source = SourceOfText(request.spec().source());
  CKPTD_ASSIGN_OR_RETURN(out.tree.dtypes, FromProto(request.spec().dtype_policy()));
  out.tree.order.assign(rules.order().begin(), rules.order().end());
  out.tree.tied.insert(rules.tied().begin(), rules.tied().end());
  CKPTD_ASSIGN_OR_RETURN(out.devices.way, FromProto(rules.way()));
  CKPTD_ASSIGN_OR_RETURN(out.devices.max_memory, ParseMaxMemory(rules.max_memory()));
  out.devices.no_split.assign(rules.no_split().begin(), rules.no_split().end());
  return out;
}

}  // namespace ckptd
