#include <fmt/format.h>

#include <algorithm>

#include "client/cpp/convert.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/path_text.h"

namespace ckptd {
inline namespace client {
namespace {

v1::Placement::Kind KindOf(Placement::Kind kind) {
  switch (kind) {
    case Placement::Kind::kShard:
      return v1::Placement::KIND_SHARD;
    case Placement::Kind::kStridedShard:
      return v1::Placement::KIND_STRIDED_SHARD;
    case Placement::Kind::kReplicate:
      break;
  }
  return v1::Placement::KIND_REPLICATE;
}

void FillMesh(const Mesh& mesh, v1::Mesh& out) {
  out.mutable_shape()->Add(mesh.shape.begin(), mesh.shape.end());
  for (const std::string& name : mesh.dim_names) out.add_dim_names(name);
  out.mutable_ranks()->Add(mesh.ranks.begin(), mesh.ranks.end());
}

void FillSharding(const Sharding& sharding, v1::Sharding& out) {
  if (sharding.mesh.has_value()) out.set_mesh(*sharding.mesh);
  for (const Placement& placement : sharding.placements) {
    v1::Placement& added = *out.add_placements();
    added.set_kind(KindOf(placement.kind));
    added.set_dim(placement.dim);
    if (placement.kind == Placement::Kind::kStridedShard) {
      added.set_split_factor(placement.split_factor);
    }
  }
  if (sharding.padded_dim.has_value()) out.set_padded_dim(*sharding.padded_dim);
  for (const Box& box : sharding.boxes) {
    v1::Box& added = *out.add_boxes();
    added.mutable_offsets()->Add(box.offsets.begin(), box.offsets.end());
    added.mutable_extents()->Add(box.extents.begin(), box.extents.end());
  }
}

// The shape columns speak of all tensors or of none (CheckLayout).
bool StatesAllShapes(const RankLayout& layout) {
  return std::all_of(layout.targets.begin(), layout.targets.end(), [](const TargetSpec& target) {
    return target.expected_shape.has_value();
  });
}

void FillFlats(const RankLayout& layout, v1::RankLayout& out) {
  for (const FlatParameter& flat : layout.flats) {
    v1::FlatParameter& added = *out.add_flat_parameters();
    added.set_name(flat.name);
    added.set_sharding(flat.sharding);
    added.set_elements(flat.elements);
  }
  uint32_t column = 0;
  for (const TargetSpec& target : layout.targets) {
    // One of none is what the daemon refuses.
    if (target.flat.has_value() && target.flat->flat < layout.flats.size()) {
      auto& flat = *out.mutable_flat_parameters(static_cast<int>(target.flat->flat));
      flat.add_tensors(column);
      flat.add_begins(target.flat->begin);
    }
    ++column;
  }
}

void FillRankLayout(const RankLayout& layout, v1::RankLayout& out) {
  out.set_rank(static_cast<int32_t>(layout.rank));
  out.set_world_size(static_cast<int32_t>(layout.world_size));
  for (const Mesh& mesh : layout.meshes) FillMesh(mesh, *out.add_meshes());
  for (const Sharding& sharding : layout.shardings) FillSharding(sharding, *out.add_shardings());
  const bool shapes = StatesAllShapes(layout);
  uint32_t column = 0;
  for (const TargetSpec& target : layout.targets) {
    out.add_names(target.name);
    out.add_sharding_of(target.sharding);
    out.add_dtypes(static_cast<v1::Dtype>(target.dtype));
    if (shapes) {
      out.add_ranks_of_shape(static_cast<uint32_t>(target.expected_shape->size()));
      out.mutable_dims()->Add(target.expected_shape->begin(), target.expected_shape->end());
    }
    for (const std::string& alias : target.aliases) {
      out.add_alias_names(alias);
      out.add_alias_tensors(column);
    }
    if (target.optional) out.add_optional_tensors(column);
    ++column;
  }
  FillFlats(layout, out);
  out.set_skip_missing(layout.skip_missing);
  out.set_refuse_unexpected(layout.refuse_unexpected);
}

}  // namespace

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
                   fmt::format("stating a layout: tensor {} has an expected shape and {} has none; "
                               "state those of all tensors, or none",
                               stated->name, missing->name),
                   {{"tensor", missing->name}});
}

v1::Layout ToProto(const LayoutSpec& layout) {
  v1::Layout out;
  if (const auto* rules = std::get_if<std::string>(&layout)) {
    out.set_rules(*rules);
  } else {
    FillRankLayout(std::get<RankLayout>(layout), *out.mutable_rank_layout());
  }
  return out;
}

v1::DtypePolicy ToProto(const DtypePolicy& policy) {
  v1::DtypePolicy out;
  out.set_cast_to(static_cast<v1::Dtype>(policy.cast_to));
  for (const std::string& pattern : policy.keep_f32) out.add_keep_f32(pattern);
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
  return out;
}

}  // namespace client
}  // namespace ckptd
