#include "common/wire/layout.h"

#include <algorithm>
#include <string>

namespace ckptd {
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

void FillFlats(const RankLayout& layout, v1::RankLayout& out) {
  for (const FlatParameter& flat : layout.flats) {
    v1::FlatParameter& added = *out.add_flat_parameters();
    added.set_name(flat.name);
    added.set_sharding(flat.sharding);
    added.set_elements(flat.elements);
  }
  uint32_t column = 0;
  for (const TargetSpec& target : layout.targets) {
    if (target.flat.has_value() && target.flat->flat < layout.flats.size()) {
      auto& flat = *out.mutable_flat_parameters(static_cast<int>(target.flat->flat));
      flat.add_tensors(column);
      flat.add_begins(target.flat->begin);
    }
    ++column;
  }
}

void FillTargets(const RankLayout& layout, v1::RankLayout& out) {
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
}

}  // namespace

bool StatesAllShapes(const RankLayout& layout) {
  return std::all_of(layout.targets.begin(), layout.targets.end(), [](const TargetSpec& target) {
    return target.expected_shape.has_value();
  });
}

v1::RankLayout ToProto(const RankLayout& layout) {
  v1::RankLayout out;
  out.set_rank(static_cast<int32_t>(layout.rank));
  out.set_world_size(static_cast<int32_t>(layout.world_size));
  for (const Mesh& mesh : layout.meshes) FillMesh(mesh, *out.add_meshes());
  for (const Sharding& sharding : layout.shardings) FillSharding(sharding, *out.add_shardings());
  FillTargets(layout, out);
  FillFlats(layout, out);
  out.set_skip_missing(layout.skip_missing);
  out.set_refuse_unexpected(layout.refuse_unexpected);
  return out;
}

v1::DtypePolicy ToProto(const DtypePolicy& policy) {
  v1::DtypePolicy out;
  out.set_cast_to(static_cast<v1::Dtype>(policy.cast_to));
  for (const std::string& pattern : policy.keep_f32) out.add_keep_f32(pattern);
  return out;
}

}  // namespace ckptd
