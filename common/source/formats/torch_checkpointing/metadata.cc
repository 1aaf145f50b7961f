#include "common/source/formats/torch_checkpointing/metadata.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/format.h"
#include "common/source/text.h"
#include "common/source/torch/file.h"
#include "common/source/torch/text_of.h"

namespace ckptd::torch_checkpointing {
namespace {

using pickle::Entry;
using pickle::Kind;
using pickle::Value;

constexpr uint64_t kMaxRanks = kMaxSourceFiles;
constexpr size_t kMaxMeshDims = 8;
constexpr size_t kMaxTensors = 4'000'000;

std::string Shown(std::string_view text) { return Quoted(Escape(text)); }

absl::Status Damaged(std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("{}; copy or save the checkpoint again", why));
}
absl::Status Unsupported(std::string_view why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   std::string(why));
}
absl::Status PastLimit(std::string_view what, uint64_t limit) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("it is about {}, at most {} are read", what, limit));
}

bool IsDict(const Value* value) { return value != nullptr && value->is(Kind::kDict); }

std::optional<uint32_t> RankOf(const Value& value) {
  int64_t number = -1;
  if (value.is(Kind::kInt)) {
    number = value.integer();
  } else if (value.is(Kind::kText)) {
    const std::string_view text = value.text();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  }
  const bool is_rank = number >= 0 && static_cast<uint64_t>(number) < kMaxRanks;
  return is_rank ? std::optional(static_cast<uint32_t>(number)) : std::nullopt;
}

std::optional<std::vector<uint32_t>> RanksOf(const Value* value) {
  if (value == nullptr || value->items().size() > kMaxRanks) return std::nullopt;
  std::vector<uint32_t> out;
  for (const Value* one : value->items()) {
    const std::optional<uint32_t> rank = RankOf(*one);
    if (!rank.has_value()) return std::nullopt;
    out.push_back(*rank);
  }
  return out;
}

std::optional<Shape> SizesAt(const Value& dict, std::string_view key) {
  const Value* const value = dict.Get(key);
  return value == nullptr ? std::nullopt : torch::SizesOf(*value);
}

// ["state", 0, "exp_avg"] as its dotted name, without so many of its first elements; these are put
// into `first`.
std::optional<std::string> NameOfPath(std::string_view json, size_t skipped, std::string* first) {
  rapidjson::Document path;
  if (ParseJson(json, JsonNumbers::kExact, path).has_value() || !path.IsArray()) {
    return std::nullopt;
  }
  std::string out;
  size_t at = 0;
  for (const auto& element : path.GetArray()) {
    std::string text;
    if (element.IsString()) {
      text.assign(element.GetString(), element.GetStringLength());
    } else if (element.IsInt64()) {
      text = std::to_string(element.GetInt64());
    } else {
      return std::nullopt;
    }
    if (at++ < skipped) {
      *first = std::move(text);
      continue;
    }
    if (at > skipped + 1) out += '.';
    out += text;
  }
  return at < skipped ? std::nullopt : std::optional(std::move(out));
}

class Reader {
 public:
  explicit Reader(const Value& root) : root_(root) {}

  absl::StatusOr<Metadata> Read();

 private:
  // Version 1.0 has all tensors in one dict, and layouts by rank.
  absl::Status ReadFlat(const Value& tensors);
  absl::Status ReadItem(const std::string& name, const Value& item);
  absl::Status AddTensor(Item& item, const std::string& name, const Value& groups);
  absl::StatusOr<Sharding> ShardingOf(const Value& group);
  absl::Status ReadDTensor(const Value& data, Sharding& out);
  absl::Status ReadBoxes(const Value& data, Sharding& out) const;
  absl::StatusOr<std::shared_ptr<const Mesh>> MeshOf(const Value* mesh);
  absl::Status AddLayout(const std::string& item, const Value& rank, const Value& layout);

  const Value& root_;
  Metadata out_;
  size_t tensors_ = 0;
  // Many tensors have one mesh.
  std::unordered_map<const Value*, std::shared_ptr<const Mesh>> meshes_;
};

absl::StatusOr<std::shared_ptr<const Mesh>> Reader::MeshOf(const Value* mesh) {
  if (!IsDict(mesh)) return Damaged("it has no mesh");
  const auto known = meshes_.find(mesh);
  if (known != meshes_.end()) return known->second;
  const std::optional<Shape> shape = SizesAt(*mesh, "mesh_shape");
  const auto ranks = RanksOf(mesh->Get("mesh_data"));
  const bool is_mesh = shape.has_value() && ranks.has_value() && shape->size() <= kMaxMeshDims &&
                       CheckedElements(*shape) == ranks->size() && !ranks->empty();
  if (!is_mesh) return Damaged("it has a mesh that is none");
  auto out = std::make_shared<Mesh>();
  // No size is larger than their product, as none is 0.
  for (const uint64_t size : *shape) out->shape.push_back(static_cast<uint32_t>(size));
  for (const uint32_t rank : *ranks) {
    const auto place = static_cast<uint32_t>(out->places.size());
    if (!out->places.emplace(rank, place).second) return Damaged("it has a rank twice in its mesh");
  }
  return meshes_.emplace(mesh, std::move(out)).first->second;
}

absl::Status Reader::ReadDTensor(const Value& data, Sharding& out) {
  CKPTD_ASSIGN_OR_RETURN(out.mesh, MeshOf(data.Get("mesh_spec")));
  const Value* const placements = data.Get("placements");
  if (placements == nullptr || placements->items().size() != out.mesh->shape.size()) {
    return Damaged("it has another number of placements than its mesh has dimensions");
  }
  for (const Value* one : placements->items()) {
    const Value* const type = one->Get("type");
    const std::string_view name = type == nullptr ? "" : type->text();
    Placement& placement = out.placements.emplace_back();
    if (name == "Replicate") continue;
    const bool is_strided = name == "StridedShard";
    if (!is_strided && name != "Shard") {
      return Unsupported(fmt::format("it is placed as {}, which is not read; save it sharded or "
                                     "replicated",
                                     Shown(name)));
    }
    const Value* const dim = one->Get("dim");
    constexpr auto kMost = static_cast<int64_t>(torch::kMaxTensorDims);
    const bool is_dim = dim != nullptr && dim->is(Kind::kInt) && dim->integer() >= -kMost &&
                        dim->integer() <= kMost;
    if (!is_dim) return Damaged("it is sharded along a dimension that is none");
    placement.kind = is_strided ? Placement::Kind::kStridedShard : Placement::Kind::kShard;
    placement.dim = static_cast<int32_t>(dim->integer());
    if (!is_strided) continue;
    const Value* const factor = one->Get("split_factor");
    const auto number = factor == nullptr ? std::nullopt : RankOf(*factor);
    if (number.value_or(0) == 0) return Damaged("it is sharded with a split factor that is none");
    placement.split_factor = *number;
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadBoxes(const Value& data, Sharding& out) const {
  std::vector<std::vector<Shape>> lists;
  for (const std::string_view key : {"global_offsets", "local_offsets", "local_sizes"}) {
    const Value* const list = data.Get(key);
    std::vector<Shape>& sizes = lists.emplace_back();
    if (list == nullptr) return Damaged(fmt::format("it has no {}", key));
    for (const Value* one : list->items()) {
      std::optional<Shape> size = torch::SizesOf(*one);
      if (!size.has_value() || size->size() != out.shape.size()) {
        return Damaged(fmt::format("it has {} of another number of dimensions", key));
      }
      sizes.push_back(*std::move(size));
    }
    if (sizes.size() != lists.front().size()) return Damaged("it has shards without a place");
  }
  for (size_t i = 0; i < lists[0].size(); ++i) {
    if (CheckedElements(lists[2][i]) == 0) continue;
    out.boxes.push_back({{std::move(lists[0][i]), std::move(lists[2][i])}, std::move(lists[1][i])});
  }
  return absl::OkStatus();
}

absl::StatusOr<Sharding> Reader::ShardingOf(const Value& group) {
  const Value* const packed = group.Get("sharding_metadata");
  const Value* const type = IsDict(packed) ? packed->Get("type") : nullptr;
  const Value* const data = IsDict(packed) ? packed->Get("data") : nullptr;
  auto ranks = RanksOf(group.Get("ranks"));
  if (type == nullptr || data == nullptr || !ranks.has_value() || ranks->empty()) {
    return Damaged("it is on no rank");
  }
  Sharding out;
  std::sort(ranks->begin(), ranks->end());
  out.ranks = *std::move(ranks);
  const bool is_dtensor = type->IsText("DTensorShardingMetadata");
  if (!is_dtensor && !type->IsText("default_tensor_v1")) {
    out.foreign = type->text();
    return out;
  }
  std::optional<Shape> shape = SizesAt(*data, "global_shape");
  if (!shape.has_value() || !CheckedElements(*shape).has_value()) {
    return Damaged("it has sizes that are none");
  }
  out.shape = *std::move(shape);
  CKPTD_RETURN_IF_ERROR(is_dtensor ? ReadDTensor(*data, out) : ReadBoxes(*data, out));
  return out;
}

absl::Status Reader::AddTensor(Item& item, const std::string& name, const Value& groups) {
  const auto in_context = [&name](const absl::Status& status) {
    return WithFact(WithContext(status, fmt::format("its tensor {}", Shown(name))), "tensor",
                    Escape(name));
  };
  if (++tensors_ > kMaxTensors) return PastLimit("more tensors", kMaxTensors);
  std::vector<Sharding>& shardings = item.tensors[name];
  if (!shardings.empty()) return in_context(Damaged("it is there twice"));
  for (const Value* group : groups.items()) {
    absl::StatusOr<Sharding> sharding = ShardingOf(*group);
    if (!sharding.ok()) return in_context(sharding.status());
    if (!sharding->foreign.empty()) {  // then nothing else counts
      shardings.assign(1, *std::move(sharding));
      return absl::OkStatus();
    }
    if (!shardings.empty() && sharding->shape != shardings.front().shape) {
      return in_context(Damaged(fmt::format("it is of the shapes ({}) and ({})",
                                            fmt::join(shardings.front().shape, ", "),
                                            fmt::join(sharding->shape, ", "))));
    }
    shardings.push_back(*std::move(sharding));
  }
  if (shardings.empty()) return in_context(Damaged("it is on no rank"));
  std::sort(shardings.begin(), shardings.end(),
            [](const Sharding& a, const Sharding& b) { return a.ranks < b.ranks; });
  return absl::OkStatus();
}

absl::Status Reader::AddLayout(const std::string& item, const Value& rank, const Value& layout) {
  const std::optional<uint32_t> number = RankOf(rank);
  if (!number.has_value() || *number >= out_.ranks) {
    const std::string named = Shown(torch::KeyText(rank));
    return Damaged(fmt::format("it names a rank {} of {}", named, out_.ranks));
  }
  if (layout.is(Kind::kNone)) return absl::OkStatus();
  const Value* const path = layout.Get("file_path");
  const Value* const format = layout.Get("serialization_format");
  const Value* const type = IsDict(format) ? format->Get("type") : nullptr;
  if (path == nullptr || path->text().empty() || type == nullptr) {
    return Damaged(fmt::format("it does not say where item {} is", Shown(item)));
  }
  Layout out{std::string(path->text())};
  if (type->IsText("SafetensorsSerialization")) {
    out.encoding = Encoding::kSafetensors;
  } else if (type->IsText("JsonSerialization")) {
    out.encoding = Encoding::kJson;
  } else if (type->IsText("RawSerialization")) {
    out.encoding = Encoding::kRaw;
  } else if (!type->IsText("TorchSerialization")) {
    return Unsupported(fmt::format("item {} is written by {}, which is not read; save it by "
                                   "TorchSerialization or SafetensorsSerialization",
                                   Shown(item), Shown(type->text())));
  }
  out_.items[item].layouts.insert_or_assign(*number, std::move(out));
  return absl::OkStatus();
}

absl::Status Reader::ReadItem(const std::string& name, const Value& item) {
  const Value* const tensors = item.Get("nested_path_to_metadata");
  const Value* const layouts = item.Get("rank_to_layout_info");
  if (!IsDict(tensors) || !IsDict(layouts)) {
    return Damaged(fmt::format("it says nothing of item {}", Shown(name)));
  }
  Item& out = out_.items[name];
  for (const Entry& tensor : tensors->entries()) {
    const auto path = NameOfPath(tensor.key->text(), 0, nullptr);
    if (!path.has_value()) {
      return Damaged(fmt::format("it has a path {} that is none", Shown(tensor.key->text())));
    }
    CKPTD_RETURN_IF_ERROR(AddTensor(out, *path, *tensor.value));
  }
  for (const Entry& layout : layouts->entries()) {
    CKPTD_RETURN_IF_ERROR(AddLayout(name, *layout.key, *layout.value));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadFlat(const Value& tensors) {
  const Value* const layouts = root_.Get("rank_to_layout_info_mappings");
  if (!IsDict(layouts)) return Damaged("it has no rank_to_layout_info_mappings");
  for (const Entry& tensor : tensors.entries()) {
    std::string item;
    const auto path = NameOfPath(tensor.key->text(), 1, &item);
    if (!path.has_value()) {
      return Damaged(fmt::format("it has a path {} that is none", Shown(tensor.key->text())));
    }
    CKPTD_RETURN_IF_ERROR(AddTensor(out_.items[item], *path, *tensor.value));
  }
  for (const Entry& rank : layouts->entries()) {
    for (const Entry& item : rank.value->entries()) {
      CKPTD_RETURN_IF_ERROR(AddLayout(std::string(item.key->text()), *rank.key, *item.value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Metadata> Reader::Read() {
  const Value* const all = root_.Get("metadata");
  const Value* const ranks = root_.Get("world_size");
  if (!IsDict(all) || ranks == nullptr || !ranks->is(Kind::kInt) || ranks->integer() < 1) {
    return Damaged("it has no metadata and world_size, as torch_checkpointing writes them");
  }
  if (static_cast<uint64_t>(ranks->integer()) > kMaxRanks) {
    return PastLimit(fmt::format("{} ranks", ranks->integer()), kMaxRanks);
  }
  out_.ranks = static_cast<uint32_t>(ranks->integer());
  const Value* const version = root_.Get("version");
  out_.version = version == nullptr ? "1.0" : version->text();
  if (out_.version == "1.0") {
    CKPTD_RETURN_IF_ERROR(ReadFlat(*all));
    return std::move(out_);
  }
  if (out_.version != "2.0") {
    return Unsupported(fmt::format("it is of version {}, and 1.0 and 2.0 are read; save the "
                                   "checkpoint by torch_checkpointing 0.1",
                                   Shown(out_.version)));
  }
  for (const Entry& item : all->entries()) {
    CKPTD_RETURN_IF_ERROR(ReadItem(std::string(item.key->text()), *item.value));
  }
  return std::move(out_);
}

}  // namespace

absl::StatusOr<Metadata> ReadMetadata(const Value& root) { return Reader(root).Read(); }

absl::StatusOr<std::optional<CutTensor>> CutOf(const std::vector<Sharding>& shardings,
                                               uint32_t rank, const Shape& local_shape) {
  const auto has_rank = [rank](const Sharding& one) {
    return std::binary_search(one.ranks.begin(), one.ranks.end(), rank);
  };
  const bool is_dtensor = shardings.front().mesh != nullptr;
  const auto found = is_dtensor ? shardings.begin()
                                : std::find_if(shardings.begin(), shardings.end(), has_rank);
  if (found == shardings.end() || !has_rank(*found)) return std::nullopt;
  if (!is_dtensor) {
    for (const PlacedBox& box : found->boxes) {
      for (size_t dim = 0; dim < box.local.size(); ++dim) {
        const auto end = CheckedAdd(box.local[dim], box.global.extents[dim]);
        const uint64_t most = dim < local_shape.size() ? local_shape[dim] : 0;
        if (end.value_or(UINT64_MAX) > most) return Damaged("a shard of it leaves the rank's tensor");
      }
    }
    return CutTensor{found->boxes, local_shape, {}};
  }
  const Mesh& mesh = *found->mesh;
  const auto place = mesh.places.find(rank);
  if (place == mesh.places.end()) return std::nullopt;
  std::vector<uint32_t> coordinates(mesh.shape.size());
  uint32_t left = place->second;
  for (size_t dim = coordinates.size(); dim-- > 0; left /= mesh.shape[dim]) {
    coordinates[dim] = left % mesh.shape[dim];
  }
  return CutByPlacements(found->placements, mesh.shape, coordinates, found->shape);
}

}  // namespace ckptd::torch_checkpointing
