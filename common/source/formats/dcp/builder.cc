#include "common/source/formats/dcp/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/dcp/flat_runs.h"
#include "common/source/path_text.h"
#include "common/source/piece.h"
#include "common/source/text.h"
#include "common/source/torch/flatten.h"

namespace ckptd::dcp {
namespace {

std::string Shown(std::string_view text) { return Quoted(Escape(text)); }

absl::Status Damaged(const std::string& key, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("its tensor {} {}; save or copy the checkpoint again", Shown(key),
                               why),
                   {{"tensor", Escape(key)}});
}

absl::Status AboveLimit(std::string_view what, size_t limit) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("it has more than {} {}; load a part of it", limit, what));
}

uint64_t BytesOf(const Box& box, Dtype dtype) {
  return CheckedBytes(ElementCount(box.extents), BitsOf(dtype)).value_or(UINT64_MAX);
}

Box WholeOf(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

}  // namespace

absl::Status Builder::Add(const Part& part) {
  index_.groups = part.groups;
  for (const Chosen& chosen : part.entries) {
    index_.tensors.emplace_back();
    index_.tensors.back().name = chosen.name;
    index_.tensors.back().kind = chosen.kind;
    index_.tensors.back().group = chosen.group;
    sources_.push_back({std::string(chosen.stored->key)});
    CKPTD_RETURN_IF_ERROR(chosen.stored->is_object ? AddObject(chosen) : AddTensor(chosen));
    if (pieces_ > kMaxSourcePieces) return AboveLimit("chunks", kMaxSourcePieces);
  }
  CKPTD_RETURN_IF_ERROR(NumberFiles());
  return FindFiles();
}

absl::Status Builder::AddObject(const Chosen& chosen) {
  CKPTD_ASSIGN_OR_RETURN(const Item item, metadata_.ObjectOf(*chosen.stored));
  TensorEntry& entry = index_.tensors.back();
  entry.dtype = Dtype::kU8;
  entry.shape = {item.bytes};
  Piece& piece = entry.pieces.emplace_back();
  piece.offset = item.offset;
  piece.bytes = item.bytes;
  piece.box = WholeOf(entry.shape);
  ++pieces_;
  wanted_.push_back({item, 0, static_cast<uint32_t>(index_.tensors.size() - 1), 0, 0, 1});
  return absl::OkStatus();
}

absl::Status Builder::AddTensor(const Chosen& chosen) {
  CKPTD_ASSIGN_OR_RETURN(StoredTensor stored, metadata_.TensorOf(*chosen.stored));
  TensorEntry& entry = index_.tensors.back();
  entry.dtype = stored.dtype;
  entry.shape = stored.model_shape.has_value() ? *stored.model_shape : stored.shape;
  CKPTD_RETURN_IF_ERROR(AddPieces(entry, stored));
  for (Chunk& chunk : stored.chunks) sources_.back().chunks.push_back(std::move(chunk.box));
  pieces_ += entry.pieces.size();
  return absl::OkStatus();
}

absl::Status Builder::AddPieces(TensorEntry& entry, const StoredTensor& stored) {
  const auto number = static_cast<uint32_t>(index_.tensors.size() - 1);
  if (stored.chunks.empty()) {
    // It has no elements, and lies nowhere.
    entry.pieces.emplace_back().box = WholeOf(entry.shape);
    return absl::OkStatus();
  }
  for (uint32_t i = 0; i < stored.chunks.size(); ++i) {
    const auto first = static_cast<uint32_t>(entry.pieces.size());
    std::vector<Box> boxes = {stored.chunks[i].box};
    if (stored.model_shape.has_value()) {
      const std::string why = BoxesOfRun(stored.shape, *stored.model_shape, boxes);
      if (!why.empty()) return Damaged(sources_.back().key, why);
    }
    uint64_t skipped = 0;  // bytes of the item in front of the piece
    for (Box& box : boxes) {
      Piece& piece = entry.pieces.emplace_back();
      piece.bytes = BytesOf(box, entry.dtype);
      piece.offset = skipped;
      piece.box = std::move(box);
      skipped += piece.bytes;
    }
    wanted_.push_back({stored.chunks[i].item, 0, number, i, first,
                       static_cast<uint32_t>(entry.pieces.size()) - first});
    if (entry.pieces.size() > kMaxSourcePieces) return AboveLimit("chunks", kMaxSourcePieces);
  }
  return absl::OkStatus();
}

absl::Status Builder::NumberFiles() {
  std::map<std::string_view, std::string> names;  // as written down -> as they are opened
  for (const Wanted& one : wanted_) {
    const auto [at, is_new] = names.try_emplace(one.item.file);
    if (!is_new) continue;
    if (const std::string_view why = WhyUnsafe(one.item.file); !why.empty()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                       fmt::format("it puts tensor {} into file {}, {}; copy the checkpoint again",
                                   Shown(sources_[one.tensor].key), Shown(one.item.file), why));
    }
    at->second = std::filesystem::path(one.item.file).lexically_normal().string();
    files_.push_back(at->second);
    if (names.size() > kMaxSourceFiles) return AboveLimit("files", kMaxSourceFiles);
  }
  std::sort(files_.begin(), files_.end());
  files_.erase(std::unique(files_.begin(), files_.end()), files_.end());
  std::map<std::string_view, uint32_t> numbers;
  for (const auto& [written, name] : names) {
    const auto at = std::lower_bound(files_.begin(), files_.end(), name);
    numbers.emplace(written, static_cast<uint32_t>(at - files_.begin()));
  }
  for (Wanted& one : wanted_) one.file = numbers.at(one.item.file);
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return std::tie(a.file, a.item.offset) < std::tie(b.file, b.item.offset);
  });
  return absl::OkStatus();
}

absl::Status Builder::FindFiles() const {
  std::vector<std::string> missing;
  for (const std::string& name : files_) {
    const bool is_here = std::binary_search(folder_.names.begin(), folder_.names.end(), name);
    if (is_here) continue;
    const bool is_below = name.find('/') != std::string::npos;
    if (is_below && storage_.Stat(folder_.source + "/" + name).ok()) continue;
    missing.push_back(name);
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(folder_.source, missing,
                      "copy the files of all nodes that saved into this folder, or finish the "
                      "download");
}

absl::Status Builder::PlaceTensor(const Wanted& wanted, const ItemTensor& tensor) {
  TensorEntry& entry = index_.tensors[wanted.tensor];
  Source& source = sources_[wanted.tensor];
  entry.big_endian = tensor.big_endian && BitsOf(entry.dtype) > 8;
  if (source.big_endian.value_or(entry.big_endian) != entry.big_endian) {
    return Damaged(source.key, "has chunks of both byte orders");
  }
  source.big_endian = entry.big_endian;
  if (wanted.pieces > 1 && !tensor.strides.empty()) {
    return Damaged(source.key, "is a flat run that has gaps");
  }
  for (uint32_t i = 0; i < wanted.pieces; ++i) {
    Piece& piece = entry.pieces[wanted.piece + i];
    const auto offset = CheckedAdd(piece.offset, tensor.offset);
    if (!offset.has_value()) return Damaged(source.key, "lies behind all files");
    piece.offset = *offset;
    piece.file = wanted.file;
    piece.strides = tensor.strides;
  }
  return absl::OkStatus();
}

absl::Status Builder::AddValues(const std::string& name, const ObjectValues& values) {
  const auto add = [&name](const auto& from, auto& to) {
    for (const auto& [path, value] : from) {
      to.insert_or_assign(path.empty() ? name : name + "." + path, value);
    }
  };
  add(values.values, index_.values);
  add(values.opaque, index_.opaque);
  if (folder_.part == "extra") {
    std::map<std::string, std::string> types;
    add(values.types, types);
    torch::AddTypes(types, name, index_.opaque.size(), index_.values);
  }
  const bool fits = index_.values.size() + index_.opaque.size() <= kMaxSourceValues;
  return fits ? absl::OkStatus() : AboveLimit("plain values", kMaxSourceValues);
}

absl::Status Builder::ReadFile(uint32_t file, size_t first, size_t end) {
  const std::string path = folder_.source + "/" + files_[file];
  CKPTD_ASSIGN_OR_RETURN(std::shared_ptr<const ReadableObject> object, storage_.Open(path));
  std::vector<uint64_t> offsets;
  for (size_t i = first; i < end; ++i) offsets.push_back(wanted_[i].item.offset);
  ItemReader reader(std::move(object), offsets, known_);
  for (size_t i = first; i < end; ++i) {
    const Wanted& one = wanted_[i];
    const TensorEntry& entry = index_.tensors[one.tensor];
    if (entry.kind == EntryKind::kObject) {
      CKPTD_ASSIGN_OR_RETURN(const ObjectValues values, reader.ReadObject(one.item));
      CKPTD_RETURN_IF_ERROR(AddValues(entry.name, values));
      index_.tensors[one.tensor].pieces.front().file = file;
      continue;
    }
    CKPTD_ASSIGN_OR_RETURN(const ItemTensor tensor,
                           reader.ReadTensor(one.item, sources_[one.tensor].key, entry.dtype,
                                             sources_[one.tensor].chunks[one.chunk]));
    CKPTD_RETURN_IF_ERROR(PlaceTensor(one, tensor));
  }
  index_.files.push_back(reader.file());
  return absl::OkStatus();
}

absl::StatusOr<CheckpointIndex> Builder::Build() {
  for (size_t first = 0; first < wanted_.size();) {
    const uint32_t file = wanted_[first].file;
    size_t end = first;
    while (end < wanted_.size() && wanted_[end].file == file) ++end;
    CKPTD_RETURN_IF_ERROR(ReadFile(file, first, end));
    first = end;
  }
  return std::move(index_);
}

}  // namespace ckptd::dcp
