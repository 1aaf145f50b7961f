#include <fmt/format.h>

#include <algorithm>

#include "client/cpp/convert.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/path_text.h"
#include "common/wire/layout.h"

namespace ckptd {
inline namespace client {

v1::AttachMode ToProto(AttachMode mode) { return static_cast<v1::AttachMode>(mode); }

google::protobuf::Duration ToProto(std::chrono::milliseconds duration) {
  google::protobuf::Duration out;
  out.set_seconds(duration.count() / 1000);
  out.set_nanos(static_cast<int32_t>(duration.count() % 1000) * 1'000'000);
  return out;
}

absl::Status CheckLayout(const LayoutSpec& layout) {
  const auto* ranks = std::get_if<RankLayout>(&layout);
  if (ranks == nullptr || StatesAllShapes(*ranks)) return absl::OkStatus();
  const auto states = [](const TargetSpec& target) { return target.expected_shape.has_value(); };
  const auto stated = std::find_if(ranks->targets.begin(), ranks->targets.end(), states);
  if (stated == ranks->targets.end()) return absl::OkStatus();
  const auto missing = std::find_if_not(ranks->targets.begin(), ranks->targets.end(), states);
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("making a layout: tensor {} has an expected shape and {} has none; "
                               "give those of all tensors, or none",
                               stated->name, missing->name),
                   {{"tensor", missing->name}});
}

v1::Layout ToProto(const LayoutSpec& layout) {
  v1::Layout out;
  if (const auto* rules = std::get_if<std::string>(&layout)) {
    out.set_rules(*rules);
  } else {
    *out.mutable_rank_layout() = ToProto(std::get<RankLayout>(layout));
  }
  return out;
}

namespace {

v1::DeviceMapRules::Way ToProto(DeviceMapWay way) {
  switch (way) {
    case DeviceMapWay::kBalancedLowZero:
      return v1::DeviceMapRules::WAY_BALANCED_LOW_0;
    case DeviceMapWay::kSequential:
      return v1::DeviceMapRules::WAY_SEQUENTIAL;
    default:
      return v1::DeviceMapRules::WAY_BALANCED;
  }
}

}  // namespace

v1::PlanLoadRequest ToProto(const PlanRequest& request) {
  v1::PlanLoadRequest out;
  out.set_source(TextOfPath(request.source));
  *out.mutable_layout() = ToProto(request.layout);
  *out.mutable_dtype_policy() = ToProto(request.dtype_policy);
  return out;
}

v1::PlanLoadRequest ToProto(const DeviceMapRequest& request) {
  v1::PlanLoadRequest out;
  out.set_source(TextOfPath(request.source));
  *out.mutable_dtype_policy() = ToProto(request.dtype_policy);
  v1::DeviceMapRules& rules = *out.mutable_device_map();
  rules.set_way(ToProto(request.way));
  rules.set_max_memory(request.max_memory);
  rules.mutable_no_split()->Add(request.no_split.begin(), request.no_split.end());
  rules.mutable_order()->Add(request.order.begin(), request.order.end());
  rules.mutable_tied()->insert(request.tied.begin(), request.tied.end());
  return out;
}

v1::LoadCheckpointRequest ToProto(const LoadRequest& request, const std::string& request_id) {
  v1::LoadCheckpointRequest out;
  out.set_source(TextOfPath(request.source));
  *out.mutable_layout() = ToProto(request.layout);
  *out.mutable_dtype_policy() = ToProto(request.dtype_policy);
  out.set_intended_mode(ToProto(request.intended_mode));
  if (request.handle_kind.has_value()) {
    out.set_handle_kind(static_cast<v1::HandleKind>(*request.handle_kind));
  }
  out.set_request_id(request_id);
  *out.mutable_timeout() = ToProto(request.timeout);
  out.set_skip_digests(!request.digests);
  if (request.wait_memory.count() > 0) *out.mutable_wait_memory() = ToProto(request.wait_memory);
  out.set_no_hold(!request.hold);
  return out;
}

}  // namespace client
}  // namespace ckptd
