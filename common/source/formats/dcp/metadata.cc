#include "common/source/formats/dcp/metadata.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <tuple>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"
#include "common/source/text.h"
#include "common/source/tiling.h"
#include "common/source/torch/dtypes.h"
#include "common/source/torch/file.h"

namespace ckptd::dcp {
namespace {

using pickle::Entry;
using pickle::Kind;
using pickle::Value;

std::string Shown(std::string_view text) { return Quoted(Escape(text)); }

absl::Status Damaged(std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("it {}; save or copy the checkpoint again", why));
}

absl::Status Damaged(const Stored& stored, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("its {} {} {}; save or copy the checkpoint again",
                               stored.is_object ? "object" : "tensor", Shown(stored.key), why),
                   {{"tensor", Escape(stored.key)}});
}

std::optional<uint64_t> Size(const Value* value) {
  if (value == nullptr || !value->is(Kind::kInt) || value->integer() < 0) return std::nullopt;
  return static_cast<uint64_t>(value->integer());
}

std::optional<Shape> Sizes(const Value* value) {
  if (value == nullptr || !(value->is(Kind::kTuple) || value->is(Kind::kList))) return std::nullopt;
  if (value->items().size() > torch::kMaxTensorDims) return std::nullopt;
  Shape out;
  for (const Value* const item : value->items()) {
    const std::optional<uint64_t> size = Size(item);
    if (!size.has_value()) return std::nullopt;
    out.push_back(*size);
  }
  return out;
}

constexpr size_t kMostAttributes = 32;

// An attribute of an object of a small class; nullptr: there is none. Objects may share a state.
const Value* Attribute(const Value& object, std::string_view name) {
  const Value* const state = object.state();
  if (state == nullptr || state->entries().size() > kMostAttributes) return nullptr;
  return state->Get(name);
}

// An attribute that is a dict; nullptr: there is none.
const Value* Dict(const Value& object, std::string_view name) {
  const Value* const dict = Attribute(object, name);
  return dict != nullptr && dict->is(Kind::kDict) ? dict : nullptr;
}

// TensorProperties as (dtype, layout, ...), whichever module has the class.
absl::StatusOr<Dtype> DtypeOf(const Stored& stored) {
  const Value* const properties = Attribute(*stored.description, "properties");
  const Value* const state = properties != nullptr ? properties->state() : nullptr;
  const bool has_items = state != nullptr && state->is(Kind::kTuple) && !state->items().empty();
  const Value* const symbol = has_items ? state->items()[0] : nullptr;
  if (symbol == nullptr || !symbol->is(Kind::kSymbol)) return Damaged(stored, "has no dtype");
  if (const auto dtype = torch::DtypeOf(symbol->text()); dtype.has_value()) return *dtype;
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("its tensor {} is of {}, which is not read; save it in another dtype",
                               Shown(stored.key), Shown(symbol->text())),
                   {{"tensor", Escape(stored.key)}});
}

// torch counts pairs of F4, everybody else elements.
bool CountElements(Dtype dtype, Shape& sizes) {
  if (dtype != Dtype::kF4) return true;
  const auto last = sizes.empty() ? std::nullopt : CheckedMultiply(sizes.back(), 2);
  if (last.has_value()) sizes.back() = *last;
  return last.has_value();
}

std::optional<Box> BoxOf(const Value& chunk, Dtype dtype) {
  std::optional<Shape> offsets = Sizes(Attribute(chunk, "offsets"));
  std::optional<Shape> extents = Sizes(Attribute(chunk, "sizes"));
  if (!offsets.has_value() || !extents.has_value()) return std::nullopt;
  if (!CountElements(dtype, *offsets) || !CountElements(dtype, *extents)) return std::nullopt;
  return Box{*std::move(offsets), *std::move(extents)};
}

// A MetadataIndex without its hint: which chunk of its key it stands for; empty: none of any.
std::optional<Shape> OffsetsOf(const Entry& located, Dtype dtype) {
  const Value* const offset = Attribute(*located.key, "offset");
  std::optional<Shape> offsets = Sizes(offset);
  if (offsets.has_value() && !CountElements(dtype, *offsets)) return std::nullopt;
  return offsets;
}

// A _StorageInfo; nullopt: it is none.
std::optional<Item> ItemOf(const Value& info) {
  const Value* const file = Attribute(info, "relative_path");
  const std::optional<uint64_t> offset = Size(Attribute(info, "offset"));
  const std::optional<uint64_t> bytes = Size(Attribute(info, "length"));
  const bool has_file = file != nullptr && file->is(Kind::kText) && !file->text().empty();
  if (!has_file || !offset.has_value() || !bytes.has_value()) return std::nullopt;
  Item item = {file->text(), *offset, *bytes};
  const Value* const transforms = Attribute(info, "transform_descriptors");
  if (transforms != nullptr && !transforms->items().empty()) {
    item.transform = transforms->items().front()->text();
    if (item.transform.empty()) return std::nullopt;
  }
  return item;
}

struct BeginOfBox {
  bool operator()(const Chunk& a, const Chunk& b) const {
    return std::tie(a.box.offsets, a.box.extents) < std::tie(b.box.offsets, b.box.extents);
  }
};

bool IsEmpty(const Box& box) {
  return std::find(box.extents.begin(), box.extents.end(), 0) != box.extents.end();
}

std::string Described(const Box& box) {
  return fmt::format("the chunk of ({}) at ({})", fmt::join(box.extents, ", "),
                     fmt::join(box.offsets, ", "));
}

}  // namespace

absl::StatusOr<Metadata> Metadata::Make(pickle::Document document) {
  Metadata out;
  out.document_ = std::move(document);
  const Value& root = *out.document_.root;
  const Value* const stored = root.is(Kind::kRecord) ? Dict(root, "state_dict_metadata") : nullptr;
  if (stored == nullptr) return Damaged("is no metadata of torch.distributed.checkpoint");
  const Value* const located = Dict(root, "storage_data");
  if (located == nullptr) return Damaged("does not say in which files its tensors are");
  CKPTD_RETURN_IF_ERROR(out.AddStored(*stored, Dict(root, "planner_data")));
  for (const Entry& entry : located->entries()) {
    const Value* const key = Attribute(*entry.key, "fqn");
    if (key == nullptr || !key->is(Kind::kText)) return Damaged("has an item without a key");
    out.located_.emplace_back(key->text(), &entry);
  }
  std::stable_sort(out.located_.begin(), out.located_.end(),
                   [](const Located& a, const Located& b) { return a.first < b.first; });
  if (const Value* const shapes = Dict(root, "mcore_data"); shapes != nullptr) {
    for (const auto& [key, data] : shapes->entries()) {
      if (data->entries().size() > kMostAttributes) continue;
      const Value* const shape = data->Get("nd_reformulated_orig_global_shape");
      if (shape != nullptr) out.model_shapes_.emplace(key->text(), shape);
    }
  }
  if (const Value* const version = Attribute(root, "version"); version != nullptr) {
    out.version_ = version->text();
  }
  return out;
}

absl::Status Metadata::AddStored(const Value& stored, const Value* planner_data) {
  std::unordered_map<std::string_view, const Value*> paths;
  if (planner_data != nullptr) {
    for (const auto& [key, path] : planner_data->entries()) {
      if (path->is(Kind::kTuple)) paths.emplace(key->text(), path);
    }
  }
  for (const auto& [key, description] : stored.entries()) {
    if (!key->is(Kind::kText) || key->text().empty()) return Damaged("has a key that is no name");
    const auto path = paths.find(key->text());
    // Only tensors have sizes; of bytes nothing is known but that they are there.
    const bool is_object = Attribute(*description, "size") == nullptr;
    stored_.push_back(
        {key->text(), is_object, path == paths.end() ? nullptr : path->second, description});
    if (is_object && !description->ClassName().ends_with(".BytesStorageMetadata")) {
      return Damaged(stored_.back(), fmt::format("is described by a {}, which is not known",
                                                 Shown(description->ClassName())));
    }
  }
  return absl::OkStatus();
}

absl::Status Metadata::ReadChunks(const Stored& stored, StoredTensor& out) const {
  const Value* const chunks = Attribute(*stored.description, "chunks");
  if (chunks == nullptr || !chunks->is(Kind::kList)) return Damaged(stored, "has no chunks");
  if (chunks->items().size() > kMaxSourcePieces) {
    return Damaged(stored, fmt::format("has more than {} chunks", kMaxSourcePieces));
  }
  for (const Value* const chunk : chunks->items()) {
    std::optional<Box> box = BoxOf(*chunk, out.dtype);
    if (!box.has_value()) return Damaged(stored, "has a chunk that is no box");
    out.chunks.push_back({*std::move(box), {}});
  }
  // Ranks that have nothing of a tensor write that down, too.
  std::erase_if(out.chunks, [](const Chunk& chunk) { return IsEmpty(chunk.box); });
  std::sort(out.chunks.begin(), out.chunks.end(), BeginOfBox());
  const auto same = [](const Chunk& a, const Chunk& b) { return a.box == b.box; };
  out.chunks.erase(std::unique(out.chunks.begin(), out.chunks.end(), same), out.chunks.end());
  std::vector<Box> boxes;
  for (const Chunk& chunk : out.chunks) boxes.push_back(chunk.box);
  if (const std::string why = WhyNoTiling(out.shape, boxes); !why.empty()) {
    return Damaged(stored, "is not whole: " + why);
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredTensor> Metadata::TensorOf(const Stored& stored) const {
  StoredTensor out;
  CKPTD_ASSIGN_OR_RETURN(out.dtype, DtypeOf(stored));
  std::optional<Shape> shape = Sizes(Attribute(*stored.description, "size"));
  if (!shape.has_value() || !CountElements(out.dtype, *shape)) {
    return Damaged(stored, "has sizes that no tensor can have");
  }
  out.shape = *std::move(shape);
  CKPTD_RETURN_IF_ERROR(ReadChunks(stored, out));
  const auto [first, last] = std::equal_range(
      located_.begin(), located_.end(), Located(stored.key, nullptr),
      [](const Located& a, const Located& b) { return a.first < b.first; });
  for (auto at = first; at != last; ++at) {
    const std::optional<Shape> offsets = OffsetsOf(*at->second, out.dtype);
    if (!offsets.has_value()) continue;
    const auto chunk = std::lower_bound(
        out.chunks.begin(), out.chunks.end(), *offsets,
        [](const Chunk& a, const Shape& begin) { return a.box.offsets < begin; });
    if (chunk == out.chunks.end() || chunk->box.offsets != *offsets) continue;
    // As in Python's dict, the last one counts.
    const std::optional<Item> item = ItemOf(*at->second->value);
    if (!item.has_value()) {
      return Damaged(stored, Described(chunk->box) + " is in no place of a file");
    }
    chunk->item = *item;
  }
  for (const Chunk& chunk : out.chunks) {
    if (!chunk.item.file.empty()) continue;
    return Damaged(stored, "is not whole: no file has " + Described(chunk.box));
  }
  const auto model_shape = model_shapes_.find(stored.key);
  if (model_shape != model_shapes_.end()) out.model_shape = Sizes(model_shape->second);
  return out;
}

absl::StatusOr<Item> Metadata::ObjectOf(const Stored& stored) const {
  const auto [first, last] = std::equal_range(
      located_.begin(), located_.end(), Located(stored.key, nullptr),
      [](const Located& a, const Located& b) { return a.first < b.first; });
  if (first == last) return Damaged(stored, "is in no file");
  const std::optional<Item> item = ItemOf(*std::prev(last)->second->value);
  if (!item.has_value()) return Damaged(stored, "is in no place of a file");
  return *item;
}

}  // namespace ckptd::dcp
