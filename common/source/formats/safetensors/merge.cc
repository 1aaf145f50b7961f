#include "common/source/formats/safetensors/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/safetensors/sharding_info.h"
#include "common/source/text.h"
#include "common/source/tiling.h"

namespace ckptd {
namespace {

TensorEntry EntryOf(HeaderTensor& tensor, uint32_t file, uint64_t data_start) {
  TensorEntry entry;
  Piece piece;
  piece.file = file;
  piece.offset = data_start + tensor.begin;
  piece.bytes = tensor.end - tensor.begin;
  piece.box.offsets.assign(tensor.shape.size(), 0);
  piece.box.extents = tensor.shape;
  entry.name = std::move(tensor.name);
  entry.dtype = tensor.dtype;
  entry.shape = std::move(tensor.shape);
  entry.pieces.push_back(std::move(piece));
  return entry;
}

uint32_t FileOfEntry(const TensorEntry& entry) { return entry.pieces.front().file; }

bool Before(const TensorEntry& a, const TensorEntry& b) {
  const int order = a.name.compare(b.name);
  return order != 0 ? order < 0 : FileOfEntry(a) < FileOfEntry(b);
}

absl::Status LimitError(const SourceFile& file, const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("reading {}: with this file the checkpoint has {}; load parts of "
                               "it by naming single files",
                               file.path, what),
                   {{"file", file.path}, {"error", "LimitExceeded"}});
}

absl::Status InTwoFiles(const std::string& tensor, const SourceFile& a, const SourceFile& b) {
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kSourceInvalid,
      fmt::format("opening the checkpoint: tensor {} is in {} and in {}; name one file, move the "
                  "other away, or load by an index.json that says which counts",
                  Quoted(tensor), a.path, b.path),
      {{"file", a.path}, {"other_file", b.path}, {"tensor", tensor}, {"error", "DuplicateTensor"}});
}

absl::Status NotWhole(const TensorEntry& tensor, const SourceFile& file, std::string_view why) {
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kSourceInvalid,
      fmt::format("opening the checkpoint: of tensor {}, which is saved in chunks as {} says, {}; "
                  "name a folder with the files of all ranks, and none of another save",
                  Quoted(tensor.name), file.path, why),
      {{"file", file.path}, {"tensor", tensor.name}, {"error", "IncompleteTensor"}});
}

absl::Status OfTwoTensors(const std::string& name, const std::string& a, const std::string& of_a,
                          const std::string& b, const std::string& of_b) {
  return MakeError(
      absl::StatusCode::kDataLoss, reason::kSourceInvalid,
      fmt::format("opening the checkpoint: {} says that {} is another name of {}, {} says of {}; "
                  "name one file, or load by an index.json that says which of them counts",
                  a, Quoted(name), Quoted(of_a), b, Quoted(of_b)),
      {{"file", a},
       {"other_file", b},
       {"tensor", name.substr(0, kMaxTensorNameBytes)},
       {"error", "DuplicateTensor"}});
}

}  // namespace

absl::Status IndexMerger::Add(SafetensorsFile file) {
  header_bytes_ += file.data_start;
  if (header_bytes_ > kMaxSourceHeaderBytes) {
    return LimitError(file.file,
                      fmt::format("more than {} bytes of headers", kMaxSourceHeaderBytes));
  }
  if (index_.tensors.size() + file.header.tensors.size() > kMaxSourceTensors) {
    return LimitError(file.file, fmt::format("more than {} tensors", kMaxSourceTensors));
  }
  const absl::StatusOr<std::map<std::string, Shape>> begins = ReadShardingInfo(file.header);
  if (!begins.ok()) {
    return WithFact(WithContext(begins.status(), "reading the header of " + file.file.path), "file",
                    file.file.path);
  }
  RemarkRepeated(file);
  const auto number = static_cast<uint32_t>(index_.files.size());
  if (index_.tensors.empty()) index_.tensors.reserve(file.header.tensors.size());
  for (HeaderTensor& tensor : file.header.tensors) {
    index_.tensors.push_back(EntryOf(tensor, number, file.data_start));
    const auto begin = begins->find(index_.tensors.back().name);
    if (begin != begins->end()) index_.tensors.back().pieces.front().box.offsets = begin->second;
  }
  has_chunks_.push_back(!begins->empty());
  file.header.metadata.erase(kShardingInfoKey);
  index_.files.push_back(std::move(file.file));
  // insert() keeps what an earlier file stated.
  index_.metadata.insert(file.header.metadata.begin(), file.header.metadata.end());
  metadata_.push_back(std::move(file.header.metadata));
  return absl::OkStatus();
}

void IndexMerger::RemarkRepeated(const SafetensorsFile& file) {
  const auto remark = [&](const RepeatedKeys& repeated, std::string_view what) {
    if (repeated.count == 0) return;
    remarks_.push_back(fmt::format(
        "the header of {} says more than once what {} of its {} are, and the last one counts: {}{}",
        file.file.path, repeated.count, what, Listed(repeated.names),
        repeated.count > repeated.names.size() ? " ..." : ""));
  };
  remark(file.header.repeated_tensors, "tensors");
  remark(file.header.repeated_metadata, "metadata keys");
}

absl::StatusOr<CheckpointIndex> IndexMerger::Finish() {
  if (index_.files.size() > 1) {
    std::sort(index_.tensors.begin(), index_.tensors.end(), Before);
  }
  if (located_.index.has_value()) CheckWeightMap();
  CKPTD_RETURN_IF_ERROR(ResolveDuplicates());
  CKPTD_RETURN_IF_ERROR(AddAliases());
  RemarkRanks();
  return std::move(index_);
}

uint32_t IndexMerger::PositionOf(const std::string& name) const {
  const auto at = std::lower_bound(located_.names.begin(), located_.names.end(), name);
  return static_cast<uint32_t>(at - located_.names.begin());
}

int64_t IndexMerger::FileOf(const std::string& tensor) const {
  if (!located_.index.has_value() || misplaced_.count(tensor) > 0) return -1;
  const auto entry = located_.index->weight_map.find(tensor);
  return entry == located_.index->weight_map.end() ? -1 : int64_t{PositionOf(entry->second)};
}

bool IndexMerger::HasEntryIn(uint32_t file, const std::string& name,
                             std::vector<TensorEntry>::const_iterator first) const {
  for (auto at = first; at != index_.tensors.end() && at->name == name; ++at) {
    if (FileOfEntry(*at) == file) return true;
  }
  return false;
}

bool IndexMerger::IsAliasIn(uint32_t file, const std::string& name) const {
  const auto entry = metadata_[file].find(name);
  if (entry == metadata_[file].end()) return false;
  const auto first = std::lower_bound(
      index_.tensors.begin(), index_.tensors.end(), entry->second,
      [](const TensorEntry& tensor, const std::string& key) { return tensor.name < key; });
  return HasEntryIn(file, entry->second, first);
}

void IndexMerger::CheckWeightMap() {
  std::vector<std::string> nowhere;  // in no file that the index names
  std::vector<std::string> elsewhere;
  // Both are sorted by name: one walk over the two.
  auto at = index_.tensors.cbegin();
  for (const auto& [tensor, name] : located_.index->weight_map) {
    const uint32_t file = PositionOf(name);
    while (at != index_.tensors.cend() && at->name < tensor) ++at;
    if (HasEntryIn(file, tensor, at) || IsAliasIn(file, tensor)) continue;
    misplaced_.insert(tensor);
    const bool held = at != index_.tensors.cend() && at->name == tensor;
    // As far as can be told at once: another name that some file states.
    const bool stated = index_.metadata.count(tensor) > 0;
    (held || stated ? elsewhere : nowhere).push_back(tensor);
  }
  const auto remark = [this](const std::vector<std::string>& names, std::string_view what) {
    if (names.empty()) return;
    remarks_.push_back(fmt::format("index {}: {} of its names {}: {}", located_.index_path,
                                   names.size(), what, Listed(names)));
  };
  remark(nowhere, "are in no file that it names");
  remark(elsewhere, "are in another file than it says");
}

absl::Status IndexMerger::WhyNotWhole(const TensorEntry& tensor,
                                      std::span<const Box> boxes) const {
  const std::string why = WhyNoTiling(tensor.shape, boxes);
  if (why.empty()) return absl::OkStatus();
  const uint32_t number = FileOfEntry(tensor);
  uint64_t held = 0;
  for (const Box& box : boxes) held += ElementCount(box.extents);
  const std::vector<std::string> lacked = of_ranks_.LackedBeside(located_.names[number]);
  if (located_.alone || lacked.empty() || held >= ElementCount(tensor.shape)) {
    return NotWhole(tensor, index_.files[number], why);
  }
  return FilesMissing(located_.folder, lacked,
                      fmt::format("of tensor {} {}: copy the files of all nodes that saved into this "
                                  "folder, or finish the download",
                                  Quoted(tensor.name), why));
}

void IndexMerger::RemarkRanks() {
  const bool in_chunks = std::find(has_chunks_.begin(), has_chunks_.end(), true) != has_chunks_.end();
  if (of_ranks_.empty() || !in_chunks) return;
  if (located_.alone) {
    remarks_.push_back(fmt::format("took {}, which one rank of a save wrote, for all of it; name "
                                   "its folder for those of other ranks",
                                   Quoted(located_.names.front())));
    return;
  }
  remarks_.push_back(fmt::format("took the files of {} for all of the save: they do not say "
                                 "how many ranks saved, and without the last rank's tensors are "
                                 "smaller",
                                 of_ranks_.Describe()));
}

absl::Status IndexMerger::Join(std::span<TensorEntry> chunks) {
  TensorEntry& whole = chunks.front();
  const SourceFile& file = index_.files[FileOfEntry(whole)];
  whole.shape.assign(whole.shape.size(), 0);
  std::vector<Box> boxes;
  for (const TensorEntry& chunk : chunks) {
    if (chunk.dtype != whole.dtype || chunk.shape.size() != whole.shape.size()) {
      return NotWhole(whole, file, "chunks differ in dtype or dimensions");
    }
    const Box& box = boxes.emplace_back(chunk.pieces.front().box);
    for (size_t dim = 0; dim < whole.shape.size(); ++dim) {
      const auto end = CheckedAdd(box.offsets[dim], box.extents[dim]);
      if (!end.has_value()) return NotWhole(whole, file, "a chunk ends behind all numbers");
      whole.shape[dim] = std::max(whole.shape[dim], *end);
    }
  }
  CKPTD_RETURN_IF_ERROR(WhyNotWhole(whole, boxes));
  for (TensorEntry& chunk : chunks.subspan(1)) {
    whole.pieces.push_back(std::move(chunk.pieces.front()));
  }
  // Ranks that hold nothing of it write that down, too.
  std::vector<Piece>& pieces = whole.pieces;
  pieces.erase(std::remove_if(pieces.begin() + (ElementCount(whole.shape) == 0 ? 1 : 0), pieces.end(),
                              [](const Piece& piece) { return piece.bytes == 0; }),
               pieces.end());
  return absl::OkStatus();
}

absl::Status IndexMerger::ResolveDuplicates() {
  std::vector<TensorEntry>& tensors = index_.tensors;
  std::vector<std::string> twice;
  size_t kept = 0;
  for (size_t first = 0; first < tensors.size();) {
    size_t last = first;
    while (last + 1 < tensors.size() && tensors[last + 1].name == tensors[first].name) ++last;
    const std::span<TensorEntry> same = std::span(tensors).subspan(first, last - first + 1);
    const bool in_chunks = std::any_of(same.begin(), same.end(), [this](const TensorEntry& entry) {
      return has_chunks_[FileOfEntry(entry)];
    });
    if (in_chunks) {
      CKPTD_RETURN_IF_ERROR(Join(same));
    } else if (last > first) {
      const std::string& name = tensors[first].name;
      if (!located_.index.has_value()) {
        return InTwoFiles(name, index_.files[FileOfEntry(tensors[first])],
                          index_.files[FileOfEntry(tensors[first + 1])]);
      }
      if (FileOf(name) != FileOfEntry(tensors[last])) twice.push_back(name);
    }
    TensorEntry& counts = in_chunks ? tensors[first] : tensors[last];
    if (&tensors[kept] != &counts) tensors[kept] = std::move(counts);
    ++kept;
    first = last + 1;
  }
  tensors.erase(tensors.begin() + static_cast<std::ptrdiff_t>(kept), tensors.end());
  if (!twice.empty()) {
    remarks_.push_back(fmt::format("{} tensors are in several files, and the last one counts, "
                                   "which the index does not say: {}",
                                   twice.size(), Listed(twice)));
  }
  return absl::OkStatus();
}

absl::Status IndexMerger::AddAliases() {
  struct Claim {
    std::string tensor;
    const std::string& by;
  };
  // Kept apart until the end, so that Find() below finds tensors only.
  std::map<std::string, Claim> claims;
  // file: -1 for the index.
  const auto claim = [&](const std::string& name, const std::string& tensor,
                         int64_t file) -> absl::Status {
    if (index_.Find(name) != nullptr) return absl::OkStatus();
    const TensorEntry* const target = index_.Find(tensor);
    if (target == nullptr || (file >= 0 && FileOfEntry(*target) != file)) return absl::OkStatus();
    if (const int64_t counts = FileOf(name); counts >= 0 && counts != file) return absl::OkStatus();
    const std::string& by =
        file < 0 ? located_.index_path : index_.files[static_cast<size_t>(file)].path;
    const auto& first = claims.try_emplace(name, Claim{tensor, by}).first->second;
    if (first.tensor == tensor) return absl::OkStatus();
    return OfTwoTensors(name, first.by, first.tensor, by, tensor);
  };
  for (size_t file = 0; file < metadata_.size(); ++file) {
    for (const auto& [name, tensor] : metadata_[file]) {
      CKPTD_RETURN_IF_ERROR(claim(name, tensor, static_cast<int64_t>(file)));
    }
  }
  if (located_.index.has_value()) {
    for (const auto& [name, tensor] : located_.index->metadata) {
      CKPTD_RETURN_IF_ERROR(claim(name, tensor, -1));
    }
  }
  for (auto& [name, found] : claims) index_.aliases.emplace(name, std::move(found.tensor));
  return absl::OkStatus();
}

}  // namespace ckptd
