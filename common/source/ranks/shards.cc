#include "common/source/ranks/shards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/format.h"
#include "common/source/piece.h"
#include "common/source/text.h"

namespace ckptd::ranks {
namespace {

using pickle::Kind;
using pickle::Value;

constexpr size_t kMaxMeshDims = 8;
constexpr uint64_t kMaxRanks = kMaxSourceFiles;
// At most so many ranks of a file's meshes are kept: those of further meshes are not known.
constexpr size_t kMostKeptRanks = 1'000'000;
// A box holds an element, and tensors of many boxes are large: real files have fewer.
constexpr uint64_t kBytesPerBox = 8;
constexpr uint64_t kFreeBoxes = 16'384;

// A value of an object's state, which is a dict, or (dict, dict of slots).
const Value* Field(const Value* state, std::string_view name) {
  if (state == nullptr) return nullptr;
  if (!state->is(Kind::kTuple)) return state->Get(name);
  for (const Value* item : state->items()) {
    if (const Value* const found = item->Get(name); found != nullptr) return found;
  }
  return nullptr;
}

// An attribute of a record; nullptr also where there is no record.
const Value* Attribute(const Value* record, std::string_view name) {
  return record == nullptr ? nullptr : record->Attribute(name);
}

std::optional<uint64_t> NumberOf(const Value* value) {
  if (value == nullptr || !value->is(Kind::kInt) || value->integer() < 0) return std::nullopt;
  return static_cast<uint64_t>(value->integer());
}

std::optional<Shape> SizesAt(const Value* value) {
  return value == nullptr ? std::nullopt : torch::SizesOf(*value);
}

// The parts that make a tensor of a subclass: the subclass, the sizes, and the object's state.
struct Wrapped {
  std::string_view type;
  const Value* sizes = nullptr;
  const Value* state = nullptr;
};
std::optional<Wrapped> WrappedOf(const Value& record) {
  const pickle::Items items = record.items();
  const bool is_wrapper = record.Calls("torch._tensor._rebuild_from_type_v2") &&
                          items.size() == 4 &&
                          items[0]->IsSymbol("torch._utils._rebuild_wrapper_subclass") &&
                          items[2]->is(Kind::kTuple) && items[2]->items().size() > 2;
  if (!is_wrapper) return std::nullopt;
  return Wrapped{items[1]->text(), items[2]->items()[2], items[3]};
}

absl::Status ShardError(absl::StatusCode code, const std::string& path, const std::string& tensor,
                        const std::string& why) {
  const bool is_unsupported = code == absl::StatusCode::kUnimplemented;
  return MakeError(code, is_unsupported ? reason::kSourceUnsupported : reason::kSourceInvalid,
                   fmt::format("reading tensor {} of {}: {}; save it again, as a whole tensor or by "
                               "torch.distributed.checkpoint",
                               Quoted(Escape(tensor)), path, why),
                   {{"file", path}, {"tensor", tensor}});
}

class Reader {
 public:
  Reader(const torch::File& file, const std::string& name, Ranks& ranks)
      : file_(file), ranks_(ranks) {
    out_.name = name;
  }

  absl::StatusOr<LocalTensor> ReadDTensor(const Wrapped& wrapped);
  absl::StatusOr<LocalTensor> ReadShardedTensor(const Wrapped& wrapped);

 private:
  absl::Status Error(absl::StatusCode code, const std::string& why) const {
    return ShardError(code, file_.file.path, out_.name, why);
  }
  absl::Status Invalid(const std::string& why) const {
    return Error(absl::StatusCode::kDataLoss, why);
  }
  absl::Status Unsupported(const std::string& why) const {
    return Error(absl::StatusCode::kUnimplemented, why);
  }

  absl::Status ReadShape(const Value* sizes);
  absl::StatusOr<torch::Tensor> TensorAt(const Value* value) const;
  absl::StatusOr<std::vector<uint32_t>> MeshShapeOf(const Value& mesh) const;
  absl::Status ReadList(const Value& list, std::vector<uint32_t>& out) const;
  absl::Status AddMeshRanks(const Value& mesh, const std::vector<uint32_t>& shape);
  absl::StatusOr<std::vector<Placement>> PlacementsOf(const Value* placements) const;
  absl::StatusOr<Placement> PlacementOf(const Value& placement) const;
  absl::Status AddShard(const Value& shard);
  absl::StatusOr<Box> BoxOf(const Value* metadata);

  const torch::File& file_;
  Ranks& ranks_;
  LocalTensor out_;
};

absl::Status Reader::ReadShape(const Value* sizes) {
  std::optional<Shape> shape = SizesAt(sizes);
  if (!shape.has_value() || !CheckedElements(*shape).has_value()) {
    return Invalid("its sizes are none that a tensor can have");
  }
  out_.shape = *std::move(shape);
  return absl::OkStatus();
}

absl::StatusOr<torch::Tensor> Reader::TensorAt(const Value* value) const {
  if (value == nullptr) return Invalid("it has no local tensor");
  absl::StatusOr<std::optional<torch::Tensor>> tensor = torch::TensorOf(file_, *value);
  if (!tensor.ok()) {
    return WithContext(tensor.status(),
                       fmt::format("reading tensor {} of {}", Quoted(Escape(out_.name)),
                                   file_.file.path));
  }
  if (!tensor->has_value()) return Invalid("its local tensor is none");
  return **std::move(tensor);
}

// The size of one axis: a number, or a tuple of some that were flattened.
std::optional<uint64_t> SizeOfAxis(const Value& size) {
  if (const auto one = NumberOf(&size); one.has_value()) return one;
  const std::optional<Shape> several = torch::SizesOf(size);
  return several.has_value() ? CheckedElements(*several) : std::nullopt;
}

// The sizes of a mesh's axes, and how far apart in its list of ranks their neighbours are.
std::vector<std::pair<uint64_t, uint64_t>> StepsOf(const Value& mesh) {
  const Value* const layout = mesh.Attribute("_layout");
  std::vector<std::pair<const Value*, const Value*>> parts = {
      {Attribute(layout, "shape"), Attribute(layout, "stride")}};
  if (const Value* const axes = Attribute(layout, "axes"); axes != nullptr) {  // torch 2.13
    parts.clear();
    for (const Value* axis : axes->items()) {
      parts.emplace_back(axis->Attribute("shape"), axis->Attribute("stride"));
    }
  }
  std::vector<std::pair<uint64_t, uint64_t>> out;
  for (const auto& [sizes, strides] : parts) {
    const std::optional<Shape> all = SizesAt(sizes);
    const std::optional<Shape> steps = SizesAt(strides);
    if (!all.has_value() || !steps.has_value() || all->size() != steps->size()) return {};
    for (size_t i = 0; i < all->size(); ++i) out.emplace_back((*all)[i], (*steps)[i]);
  }
  return out;
}

// The ranks of a mesh that is a slice of a larger one, which `list` is of: those that are reached
// from the rank that saved it. Empty: not known.
std::vector<uint32_t> OwnRanks(const Value& mesh, const std::vector<uint32_t>& list) {
  const std::optional<uint64_t> rank = NumberOf(mesh.Attribute("_rank"));
  const auto found = std::find(list.begin(), list.end(), rank.value_or(kMaxRanks));
  if (found == list.end()) return {};
  const auto place = static_cast<uint64_t>(found - list.begin());
  std::vector<uint64_t> places = {place};
  const std::vector<std::pair<uint64_t, uint64_t>> steps = StepsOf(mesh);
  if (steps.empty()) return {};
  for (const auto& [size, step] : steps) {
    if (size == 0 || step == 0 || size > list.size() / places.size()) return {};
    const uint64_t back = place / step % size * step;
    std::vector<uint64_t> more;
    for (const uint64_t at : places) {
      for (uint64_t i = 0; i < size; ++i) more.push_back(at - back + i * step);
    }
    places = std::move(more);
  }
  std::vector<uint32_t> out;
  for (const uint64_t at : places) {
    if (at >= list.size()) return {};
    out.push_back(list[at]);
  }
  return out;
}

absl::StatusOr<std::vector<uint32_t>> Reader::MeshShapeOf(const Value& mesh) const {
  Shape sizes;
  const Value* const layout = mesh.Attribute("_layout");
  const Value* const axes = Attribute(layout, "axes");
  const Value* const shape = Attribute(layout, "shape");
  if (axes != nullptr) {  // torch 2.13
    for (const Value* axis : axes->items()) {
      const Value* const size = axis->Attribute("shape");
      sizes.push_back(size == nullptr ? 0 : SizeOfAxis(*size).value_or(0));
    }
  } else if (shape != nullptr && shape->is(Kind::kTuple)) {
    for (const Value* size : shape->items()) sizes.push_back(SizeOfAxis(*size).value_or(0));
  } else if (shape != nullptr) {
    sizes.push_back(SizeOfAxis(*shape).value_or(0));
  } else if (const Value* const tensor = mesh.Attribute("mesh"); tensor != nullptr) {
    CKPTD_ASSIGN_OR_RETURN(const torch::Tensor ranks, TensorAt(tensor));  // before torch 2.9
    sizes = ranks.shape;
  } else {
    return Unsupported("its mesh has no shape that is known");
  }
  std::vector<uint32_t> out;
  uint64_t ranks = 1;
  for (const uint64_t size : sizes) {
    const std::optional<uint64_t> product = CheckedMultiply(ranks, size);
    ranks = product.value_or(0);
    if (ranks == 0 || ranks > kMaxRanks || out.size() == kMaxMeshDims) {
      return Invalid(fmt::format("its mesh has a shape of ({})", fmt::join(sizes, ", ")));
    }
    out.push_back(static_cast<uint32_t>(size));
  }
  return out;
}

absl::Status Reader::ReadList(const Value& list, std::vector<uint32_t>& out) const {
  if (list.items().size() > kMaxRanks) return Invalid("its mesh has too many ranks");
  for (const Value* rank : list.items()) {
    const std::optional<uint64_t> number = NumberOf(rank);
    if (!number.has_value() || *number >= kMaxRanks) {
      return Invalid("its mesh has ranks that are none");
    }
    out.push_back(static_cast<uint32_t>(*number));
  }
  return absl::OkStatus();
}

absl::Status Reader::AddMeshRanks(const Value& mesh, const std::vector<uint32_t>& shape) {
  const auto [at, is_new] = ranks_.of_meshes.try_emplace(&mesh);
  out_.mesh = at->second;
  if (!is_new) return absl::OkStatus();
  const Value* list = mesh.Attribute("_flatten_rank_map");
  if (list == nullptr) list = mesh.Attribute("_flatten_mesh_list");  // before torch 2.9
  uint32_t count = 1;
  for (const uint32_t size : shape) count *= size;
  if (list == nullptr || list->items().empty()) {
    for (; ranks_.all_below < count; ++ranks_.all_below) ranks_.numbers.insert(ranks_.all_below);
    return absl::OkStatus();
  }
  const auto [listed, is_first] = ranks_.lists.try_emplace(list);
  if (is_first) {
    CKPTD_RETURN_IF_ERROR(ReadList(*list, listed->second));
    ranks_.numbers.insert(listed->second.begin(), listed->second.end());
  }
  if (ranks_.kept + count > kMostKeptRanks) return absl::OkStatus();
  ranks_.kept += count;
  std::vector<uint32_t> own = count == listed->second.size() ? listed->second
                                                             : OwnRanks(mesh, listed->second);
  if (own.empty()) return absl::OkStatus();
  std::sort(own.begin(), own.end());
  at->second = std::make_shared<const std::vector<uint32_t>>(std::move(own));
  out_.mesh = at->second;
  return absl::OkStatus();
}

absl::StatusOr<Placement> Reader::PlacementOf(const Value& placement) const {
  const std::string_view whole = placement.ClassName();
  const std::string_view name = whole.substr(whole.rfind('.') + 1);
  Placement out;
  if (name == "Replicate") return out;
  if (name != "Shard" && name != "_StridedShard") {
    return Unsupported(fmt::format("it is placed as {}, which is no part of a tensor",
                                   Quoted(Escape(whole))));
  }
  const Value* const dim = placement.Attribute("dim");
  constexpr auto kMost = static_cast<int64_t>(torch::kMaxTensorDims);
  const bool is_dim = dim != nullptr && dim->is(Kind::kInt) && dim->integer() >= -kMost &&
                      dim->integer() <= kMost;
  if (!is_dim) return Invalid("it is sharded along a dimension that is none");
  out.kind = Placement::Kind::kShard;
  out.dim = static_cast<int32_t>(dim->integer());
  if (name == "Shard") return out;
  const std::optional<uint64_t> factor = NumberOf(placement.Attribute("split_factor"));
  if (!factor.has_value() || *factor == 0 || *factor > kMaxRanks) {
    return Invalid("it is sharded with a split factor that is none");
  }
  out.kind = Placement::Kind::kStridedShard;
  out.split_factor = static_cast<uint32_t>(*factor);
  return out;
}

absl::StatusOr<std::vector<Placement>> Reader::PlacementsOf(const Value* placements) const {
  std::vector<Placement> out;
  if (placements == nullptr || placements->items().size() > kMaxMeshDims) {
    return Invalid("it has no placements");
  }
  for (const Value* one : placements->items()) {
    CKPTD_ASSIGN_OR_RETURN(out.emplace_back(), PlacementOf(*one));
  }
  return out;
}

absl::StatusOr<LocalTensor> Reader::ReadDTensor(const Wrapped& wrapped) {
  CKPTD_RETURN_IF_ERROR(ReadShape(wrapped.sizes));
  const Value* const spec = Field(wrapped.state, "_spec");
  const Value* const mesh = Attribute(spec, "mesh");
  if (mesh == nullptr) return Invalid("it has no mesh");
  CKPTD_ASSIGN_OR_RETURN(const torch::Tensor local,
                         TensorAt(Field(wrapped.state, "_local_tensor")));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<uint32_t> shape, MeshShapeOf(*mesh));
  CKPTD_RETURN_IF_ERROR(AddMeshRanks(*mesh, shape));
  CKPTD_ASSIGN_OR_RETURN(const std::vector<Placement> placements,
                         PlacementsOf(Attribute(spec, "placements")));
  const Value* const place = mesh->Attribute("_coordinate_on_dim");
  if (place == nullptr || place->is(Kind::kNone)) {  // not in the mesh
    if (!CountElements(local.dtype, out_.shape)) return Invalid("it has too many elements");
    return std::move(out_);
  }
  std::vector<uint32_t> coordinates;
  for (const Value* item : place->items()) {
    const uint64_t at = NumberOf(item).value_or(kMaxRanks);
    const bool is_inside = coordinates.size() < shape.size() && at < shape[coordinates.size()];
    if (!is_inside) return Invalid("its rank has no place in its mesh");
    coordinates.push_back(static_cast<uint32_t>(at));
  }
  if (coordinates.size() != shape.size() || placements.size() != shape.size()) {
    return Invalid("its mesh has another number of dimensions than its placements");
  }
  out_.dtype = local.dtype;
  absl::StatusOr<CutTensor> cut = CutByPlacements(placements, shape, coordinates, out_.shape);
  if (!cut.ok()) return Invalid(MessageOf(cut.status()));
  CKPTD_RETURN_IF_ERROR(AddBoxes(file_.file.path, local, *std::move(cut), out_));
  return std::move(out_);
}

absl::StatusOr<Box> Reader::BoxOf(const Value* metadata) {
  std::optional<Shape> offsets = SizesAt(Attribute(metadata, "shard_offsets"));
  std::optional<Shape> extents = SizesAt(Attribute(metadata, "shard_sizes"));
  if (!offsets.has_value() || !extents.has_value()) return Invalid("it has a shard without a place");
  const Value* const placement = Attribute(metadata, "placement");
  const std::optional<uint64_t> rank = NumberOf(Attribute(placement, "_rank"));
  if (rank.has_value() && *rank < kMaxRanks) ranks_.numbers.insert(static_cast<uint32_t>(*rank));
  return Box{*std::move(offsets), *std::move(extents)};
}

absl::Status Reader::AddShard(const Value& shard) {
  CKPTD_ASSIGN_OR_RETURN(Box box, BoxOf(shard.Attribute("metadata")));
  CKPTD_ASSIGN_OR_RETURN(torch::Tensor tensor, TensorAt(shard.Attribute("tensor")));
  if (tensor.shape != box.extents) {
    return Invalid(fmt::format("its local tensor is ({}), and its shard ({})",
                               fmt::join(tensor.shape, ", "), fmt::join(box.extents, ", ")));
  }
  if (out_.dtype != Dtype::kUnspecified && out_.dtype != tensor.dtype) {
    return Invalid("its shards are of several types");
  }
  out_.dtype = tensor.dtype;
  if (ElementCount(tensor.shape) > 0) {
    out_.boxes.push_back({std::move(box), std::move(tensor)});
  }
  return absl::OkStatus();
}

absl::StatusOr<LocalTensor> Reader::ReadShardedTensor(const Wrapped& wrapped) {
  CKPTD_RETURN_IF_ERROR(ReadShape(wrapped.sizes));
  // Local shards, metadata, the process group, its sharding, whether it has remote references.
  const pickle::Items state = wrapped.state->items();
  if (state.size() < 2) return Invalid("it has no shards");
  const Value* const all = state[1]->Attribute("shards_metadata");
  if (all == nullptr) return Invalid("it does not say which shards there are");
  if (ranks_.seen.insert(all).second) {
    for (const Value* shard : all->items()) CKPTD_RETURN_IF_ERROR(BoxOf(shard).status());
  }
  for (const Value* shard : state[0]->items()) CKPTD_RETURN_IF_ERROR(AddShard(*shard));
  return std::move(out_);
}

}  // namespace

bool CountElements(Dtype dtype, Shape& shape) {
  if (dtype != Dtype::kF4 || shape.empty()) return true;
  const auto last = CheckedMultiply(shape.back(), 2);
  if (last.has_value()) shape.back() = *last;
  return last.has_value();
}

absl::Status AddBoxes(const std::string& path, const torch::Tensor& local, CutTensor cut,
                      LocalTensor& out) {
  bool counts = CountElements(local.dtype, out.shape) && CountElements(local.dtype, cut.local_shape);
  for (PlacedBox& box : cut.boxes) {
    for (Shape* sizes : {&box.global.offsets, &box.global.extents, &box.local}) {
      counts = CountElements(local.dtype, *sizes) && counts;
    }
  }
  if (!counts || !CheckedElements(out.shape).has_value()) {
    return ShardError(absl::StatusCode::kDataLoss, path, out.name,
                      "it has more elements than 64 bits count");
  }
  if (cut.boxes.empty() && CheckedElements(local.shape) == 0) return absl::OkStatus();
  if (local.shape != cut.local_shape) {
    return ShardError(absl::StatusCode::kDataLoss, path, out.name,
                      fmt::format("its local tensor is ({}), and its placements give ({})",
                                  fmt::join(local.shape, ", "), fmt::join(cut.local_shape, ", ")));
  }
  const Shape strides = StridesOf(torch::PieceOf(local, 0));
  const uint64_t bits = BitsOf(local.dtype);
  for (const PlacedBox& placed : cut.boxes) {
    LocalBox& one = out.boxes.emplace_back(LocalBox{placed.global, local});
    one.view.shape = placed.global.extents;
    one.view.strides = CompactStrides(one.view.shape, strides);
    uint64_t first = 0;
    for (size_t dim = 0; dim < strides.size(); ++dim) first += placed.local[dim] * strides[dim];
    // The local tensor lies in its file, so its bits can be counted.
    if (first * bits % 8 != 0) {
      return ShardError(absl::StatusCode::kUnimplemented, path, out.name,
                        "a part of it begins within a byte");
    }
    one.view.offset += first * bits / 8;
    if (one.view.content != 0) one.view.content += first;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<LocalTensor>> LocalTensorOf(const torch::File& file,
                                                         const std::string& name,
                                                         const Value& record,
                                                         Ranks& ranks) {
  const std::optional<Wrapped> wrapped = WrappedOf(record);
  if (!wrapped.has_value() || !wrapped->type.starts_with("torch.distributed.")) return std::nullopt;
  if (wrapped->type.ends_with(".DTensor")) return Reader(file, name, ranks).ReadDTensor(*wrapped);
  if (!wrapped->type.ends_with(".ShardedTensor")) return std::nullopt;
  return Reader(file, name, ranks).ReadShardedTensor(*wrapped);
}

absl::Status BoxBudget::Pay(const std::string& path, const LocalTensor& tensor) {
  // A tensor that has none here costs its name.
  boxes_ += tensor.boxes.size() + 1;
  const uint64_t most = std::min<uint64_t>(kFreeBoxes + bytes_ / kBytesPerBox, kMaxSourcePieces);
  if (boxes_ <= most) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("reading tensor {} of {}: the tensors of the files so far lie in "
                               "more than {} boxes, which no files of their size do; save them by "
                               "torch.distributed.checkpoint",
                               Quoted(Escape(tensor.name)), path, most),
                   {{"file", path}, {"tensor", tensor.name}});
}

absl::StatusOr<RankState> RankStateOf(const torch::File& file, const std::string& prefix,
                                      BoxBudget& budget) {
  RankState out;
  out.file = file.file;
  out.big_endian = file.big_endian;
  budget.AddFile(file.file);
  Ranks ranks;
  const torch::Claim claim = [&](const std::string& name,
                                 const Value& record) -> absl::StatusOr<bool> {
    CKPTD_ASSIGN_OR_RETURN(std::optional<LocalTensor> tensor,
                           LocalTensorOf(file, name, record, ranks));
    if (!tensor.has_value()) return false;
    CKPTD_RETURN_IF_ERROR(budget.Pay(file.file.path, *tensor));
    out.sharded.push_back(*std::move(tensor));
    return true;
  };
  CKPTD_ASSIGN_OR_RETURN(out.plain,
                         torch::Flatten(file, *file.document.root, prefix, {}, claim));
  out.ranks = std::move(ranks.numbers);
  return out;
}

}  // namespace ckptd::ranks
