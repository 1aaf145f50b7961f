// Converts layouts of requests. Their content is not trusted.
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/wire/layout.h"
#include "server/rpc/convert.h"

namespace ckptd {
namespace {

// A request with more tensors than this is no model.
constexpr int kMaxTensors = 4'000'000;
constexpr size_t kMaxNameBytes = 64 * 1024;

absl::Status Invalid(const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayoutInvalid,
                   "reading the layout of a request: " + why);
}

// A later client's wish that is not understood must not be left out: the rank would get other bytes
// than it has asked for. `what` is for people.
absl::Status RefuseUnknown(const google::protobuf::Message& message, std::string_view what) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::OkStatus();
  return Invalid(fmt::format("{} has a field {} that this daemon does not know; update the daemon, or "
                             "use the client of its version",
                             what, unknown.field(0).number()));
}

template <typename Messages>
absl::Status RefuseUnknownInEach(const Messages& messages, std::string_view what) {
  for (const auto& message : messages) CKPTD_RETURN_IF_ERROR(RefuseUnknown(message, what));
  return absl::OkStatus();
}

absl::Status RefuseUnknownIn(const v1::RankLayout& in) {
  CKPTD_RETURN_IF_ERROR(RefuseUnknown(in, "it"));
  CKPTD_RETURN_IF_ERROR(RefuseUnknownInEach(in.meshes(), "a mesh"));
  CKPTD_RETURN_IF_ERROR(RefuseUnknownInEach(in.shardings(), "a sharding"));
  for (const v1::Sharding& sharding : in.shardings()) {
    CKPTD_RETURN_IF_ERROR(RefuseUnknownInEach(sharding.placements(), "a placement"));
    CKPTD_RETURN_IF_ERROR(RefuseUnknownInEach(sharding.boxes(), "a box"));
  }
  return RefuseUnknownInEach(in.flat_parameters(), "a flat parameter");
}

absl::StatusOr<Sharding> ShardingFrom(const v1::Sharding& in) {
  Sharding out;
  if (in.has_mesh()) out.mesh = in.mesh();
  for (const v1::Placement& placement : in.placements()) {
    Placement one;
    switch (placement.kind()) {
      case v1::Placement::KIND_REPLICATE: one.kind = Placement::Kind::kReplicate; break;
      case v1::Placement::KIND_SHARD: one.kind = Placement::Kind::kShard; break;
      case v1::Placement::KIND_STRIDED_SHARD: one.kind = Placement::Kind::kStridedShard; break;
      default: return Invalid(fmt::format("placement kind {} is unknown",
                                          static_cast<int>(placement.kind())));
    }
    one.dim = placement.dim();
    one.split_factor = one.kind == Placement::Kind::kStridedShard ? placement.split_factor() : 1;
    out.placements.push_back(one);
  }
  if (in.has_padded_dim()) out.padded_dim = in.padded_dim();
  for (const v1::Box& box : in.boxes()) {
    out.boxes.push_back({Shape(box.offsets().begin(), box.offsets().end()),
                         Shape(box.extents().begin(), box.extents().end())});
  }
  return out;
}

// Called after ReadTargets, because it marks the members among the targets.
absl::Status ReadFlats(const v1::RankLayout& in, RankLayout& out) {
  if (in.flat_parameters_size() > in.names_size()) {
    return Invalid(fmt::format("it has {} flat parameters of {} tensors",
                               in.flat_parameters_size(), in.names_size()));
  }
  for (const v1::FlatParameter& flat : in.flat_parameters()) {
    if (flat.name().size() > kMaxNameBytes) return Invalid("a flat parameter's name is too long");
    if (flat.tensors_size() != flat.begins_size()) {
      return Invalid(fmt::format("the columns of flat parameter {} differ in length", flat.name()));
    }
    const auto number = static_cast<uint32_t>(out.flats.size());
    for (int i = 0; i < flat.tensors_size(); ++i) {
      if (flat.tensors(i) >= out.targets.size() || out.targets[flat.tensors(i)].flat.has_value()) {
        return Invalid(fmt::format("flat parameter {} names tensor {} of {}, which does not exist "
                                   "or is a member already",
                                   flat.name(), flat.tensors(i), out.targets.size()));
      }
      out.targets[flat.tensors(i)].flat = {number, flat.begins(i)};
    }
    out.flats.push_back({flat.name(), flat.sharding(), flat.elements()});
  }
  return absl::OkStatus();
}

absl::StatusOr<Dtype> DtypeFrom(int value) {
  if (value >= 0 && value < kDtypeCount) return static_cast<Dtype>(value);
  return Invalid(fmt::format("dtype {} is unknown", value));
}

// Reads the columns of `layout.targets`, but not the aliases.
absl::Status ReadTargets(const v1::RankLayout& in, RankLayout& out) {
  const int count = in.names_size();
  if (count > kMaxTensors || in.sharding_of_size() != count || in.dtypes_size() != count ||
      (in.ranks_of_shape_size() != count && in.ranks_of_shape_size() != 0)) {
    return Invalid(fmt::format("its columns differ in length: {} names, {} shardings, {} dtypes, "
                               "{} shapes",
                               count, in.sharding_of_size(), in.dtypes_size(),
                               in.ranks_of_shape_size()));
  }
  out.targets.reserve(static_cast<size_t>(count));
  int dim = 0;
  for (int i = 0; i < count; ++i) {
    TargetSpec& target = out.targets.emplace_back();
    target.name = in.names(i);
    if (target.name.size() > kMaxNameBytes) return Invalid("a tensor name is too long");
    target.sharding = in.sharding_of(i);
    if (target.sharding >= out.shardings.size()) {
      return Invalid(fmt::format("tensor {} names sharding {}, there are {}", target.name,
                                 target.sharding, out.shardings.size()));
    }
    CKPTD_ASSIGN_OR_RETURN(target.dtype, DtypeFrom(static_cast<int>(in.dtypes(i))));
    if (in.ranks_of_shape_size() > 0) {
      const uint32_t dims = in.ranks_of_shape(i);
      if (dims > static_cast<uint32_t>(in.dims_size() - dim)) {
        return Invalid(fmt::format("the shape of tensor {} is cut short", target.name));
      }
      target.expected_shape.emplace(in.dims().begin() + dim,
                                    in.dims().begin() + dim + static_cast<int>(dims));
      dim += static_cast<int>(dims);
    }
  }
  if (dim != in.dims_size()) return Invalid("it has more dims than its shapes need");
  return absl::OkStatus();
}

absl::Status ReadAliases(const v1::RankLayout& in, RankLayout& out) {
  if (in.alias_names_size() != in.alias_tensors_size()) {
    return Invalid("its alias columns differ in length");
  }
  for (int i = 0; i < in.alias_names_size(); ++i) {
    if (in.alias_tensors(i) >= out.targets.size()) {
      return Invalid(fmt::format("alias {} names tensor {}, there are {}", in.alias_names(i),
                                 in.alias_tensors(i), out.targets.size()));
    }
    out.targets[in.alias_tensors(i)].aliases.push_back(in.alias_names(i));
  }
  return absl::OkStatus();
}

// An empty mesh or sharding has two bytes in the message and many more here, where a load that
// gathers keeps them: there are no more than a layout can use, and a few.
absl::Status CheckCounts(const v1::RankLayout& in) {
  constexpr int kUnused = 64;
  if (in.shardings_size() - kUnused > in.names_size() + in.flat_parameters_size()) {
    return Invalid(fmt::format("it has {} shardings for {} tensors and {} flat parameters",
                               in.shardings_size(), in.names_size(), in.flat_parameters_size()));
  }
  if (in.meshes_size() - kUnused > in.shardings_size()) {
    return Invalid(fmt::format("it has {} meshes for {} shardings", in.meshes_size(),
                               in.shardings_size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RankLayout> FromProto(const v1::RankLayout& in) {
  RankLayout out;
  CKPTD_RETURN_IF_ERROR(CheckCounts(in));
  CKPTD_RETURN_IF_ERROR(RefuseUnknownIn(in));
  if (in.rank() < 0 || in.world_size() <= 0 || in.rank() >= in.world_size()) {
    return Invalid(fmt::format("rank {} of {} is none", in.rank(), in.world_size()));
  }
  out.rank = static_cast<uint32_t>(in.rank());
  out.world_size = static_cast<uint32_t>(in.world_size());
  for (const v1::Mesh& mesh : in.meshes()) {
    out.meshes.push_back({{mesh.shape().begin(), mesh.shape().end()},
                          {mesh.dim_names().begin(), mesh.dim_names().end()},
                          {mesh.ranks().begin(), mesh.ranks().end()}});
  }
  for (const v1::Sharding& sharding : in.shardings()) {
    CKPTD_ASSIGN_OR_RETURN(Sharding one, ShardingFrom(sharding));
    out.shardings.push_back(std::move(one));
  }
  CKPTD_RETURN_IF_ERROR(ReadTargets(in, out));
  CKPTD_RETURN_IF_ERROR(ReadAliases(in, out));
  for (const uint32_t i : in.optional_tensors()) {
    if (i >= out.targets.size()) {
      return Invalid(fmt::format("it calls tensor {} optional, there are {}", i,
                                 out.targets.size()));
    }
    out.targets[i].optional = true;
  }
  CKPTD_RETURN_IF_ERROR(ReadFlats(in, out));
  out.skip_missing = in.skip_missing();
  out.refuse_unexpected = in.refuse_unexpected();
  const auto by_name = [](const TargetSpec& a, const TargetSpec& b) { return a.name < b.name; };
  // Our clients send them sorted, and sorting again would move all of them.
  if (!std::is_sorted(out.targets.begin(), out.targets.end(), by_name)) {
    std::stable_sort(out.targets.begin(), out.targets.end(), by_name);
  }
  return out;
}

absl::StatusOr<DtypePolicy> FromProto(const v1::DtypePolicy& policy) {
  DtypePolicy out;
  CKPTD_RETURN_IF_ERROR(RefuseUnknown(policy, "its dtype policy"));
  CKPTD_ASSIGN_OR_RETURN(out.cast_to, DtypeFrom(policy.cast_to()));
  if (out.cast_to != Dtype::kUnspecified && !IsCastable(out.cast_to)) {
    return Invalid(fmt::format("casting to {} is not supported; use F64, F32, F16 or BF16",
                               NameOf(out.cast_to)));
  }
  out.keep_f32.assign(policy.keep_f32().begin(), policy.keep_f32().end());
  return out;
}

v1::Layout ToProto(const LayoutRequest& layout) {
  v1::Layout out;
  if (const auto* rules = std::get_if<std::string>(&layout)) {
    out.set_rules(*rules);
  } else {
    *out.mutable_rank_layout() = ToProto(*std::get<std::shared_ptr<const RankLayout>>(layout));
  }
  return out;
}

absl::StatusOr<LayoutRequest> FromProto(const v1::Layout& layout) {
  switch (layout.form_case()) {
    case v1::Layout::kRules: return LayoutRequest(layout.rules());
    case v1::Layout::kRankLayout: {
      CKPTD_ASSIGN_OR_RETURN(RankLayout stated, FromProto(layout.rank_layout()));
      return LayoutRequest(std::make_shared<const RankLayout>(std::move(stated)));
    }
    default:
      return Invalid("it has none; give fsdp:N, hsdp:RxS, replicate:N, layout rules as JSON, or "
                     "the tensors of the calling rank");
  }
}

}  // namespace ckptd
