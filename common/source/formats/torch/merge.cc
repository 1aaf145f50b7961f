#include "common/source/formats/torch/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/format.h"
#include "common/source/text.h"

namespace ckptd::torch {
namespace {

absl::Status PastLimit(const SourceFile& file, const std::string& what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("reading {}: with this file the checkpoint has {}; load parts of it "
                               "by naming single files",
                               file.path, what),
                   {{"file", file.path}, {"error", "LimitExceeded"}});
}

}  // namespace

uint32_t IndexMerger::GroupOf(const std::string& name) {
  std::vector<std::string>& groups = index_.groups;
  auto at = std::find(groups.begin(), groups.end(), name);
  if (at == groups.end()) at = groups.insert(groups.end(), name);
  return static_cast<uint32_t>(at - groups.begin());
}

// Removes what an earlier file has under this name. A tensor that has other names there takes one
// of them.
absl::Status IndexMerger::MakeRoom(const std::string& name, const SourceFile& file) {
  const auto tensor = tensors_.find(name);
  const bool is_alias = index_.aliases.contains(name);
  if (tensor == tensors_.end() && !is_alias) return absl::OkStatus();
  if (!located_.index.has_value()) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                     fmt::format("opening the checkpoint: tensor {} is in {} and in a file before "
                                 "it; name one file, or load by an index.json that says which "
                                 "counts",
                                 Quoted(Escape(name)), file.path),
                     {{"file", file.path}, {"tensor", name}, {"error", "DuplicateTensor"}});
  }
  if (is_alias) {
    index_.aliases.erase(name);
    return absl::OkStatus();
  }
  TensorEntry entry = std::move(tensor->second);
  tensors_.erase(tensor);
  std::string new_name;
  for (auto& [alias, of] : index_.aliases) {
    if (of != name) continue;
    if (new_name.empty()) new_name = alias;
    of = new_name;
  }
  if (new_name.empty()) return absl::OkStatus();
  index_.aliases.erase(new_name);
  entry.name = new_name;
  tensors_.emplace(new_name, std::move(entry));
  return absl::OkStatus();
}

absl::Status IndexMerger::Add(const File& file, TakenPart part) {
  const auto number = static_cast<uint32_t>(index_.files.size());
  index_.files.push_back(file.file);
  const size_t names = part.tensors.size() + part.rest.aliases.size();
  if (tensors_.size() + index_.aliases.size() + names > kMaxSourceTensors) {
    return PastLimit(file.file, fmt::format("more than {} tensors", kMaxSourceTensors));
  }
  const bool is_first = number == 0;
  for (const PartTensor& tensor : part.tensors) {
    if (!is_first) CKPTD_RETURN_IF_ERROR(MakeRoom(tensor.named.name, file.file));
  }
  for (const auto& alias : part.rest.aliases) {
    if (!is_first) CKPTD_RETURN_IF_ERROR(MakeRoom(alias.first, file.file));
  }
  for (const PartTensor& tensor : part.tensors) {
    TensorEntry entry = EntryOf(file, tensor.named, number);
    entry.group = GroupOf(tensor.group);
    tensors_.emplace(tensor.named.name, std::move(entry));
  }
  index_.aliases.merge(part.rest.aliases);
  // A value that an earlier file stated stays.
  index_.values.merge(part.rest.values);
  index_.opaque.merge(part.rest.opaque);
  if (index_.values.size() + index_.opaque.size() > kMaxSourceValues) {
    return PastLimit(file.file,
                     fmt::format("more than {} values that are no tensors", kMaxSourceValues));
  }
  std::move(part.remarks.begin(), part.remarks.end(), std::back_inserter(remarks_));
  return absl::OkStatus();
}

void IndexMerger::CheckWeightMap() {
  std::vector<std::string> nowhere;
  std::vector<std::string> elsewhere;
  for (const auto& [name, file] : located_.index->weight_map) {
    const TensorEntry* const tensor = index_.Find(name);
    if (tensor == nullptr) {
      nowhere.push_back(name);
    } else if (located_.names[tensor->pieces.front().file] != file) {
      elsewhere.push_back(name);
    }
  }
  const auto remark = [this](const std::vector<std::string>& names, std::string_view what) {
    if (names.empty()) return;
    remarks_.push_back(fmt::format("index {}: {} of its names {}: {}", located_.index_path,
                                   names.size(), what, Listed(names)));
  };
  remark(nowhere, "are in no file that it names");
  remark(elsewhere, "are in another file than it says");
}

absl::StatusOr<CheckpointIndex> IndexMerger::Finish() {
  index_.tensors.reserve(tensors_.size());
  for (auto& [name, entry] : tensors_) index_.tensors.push_back(std::move(entry));
  CKPTD_RETURN_IF_ERROR(FinishTensors(index_));
  if (!located_.index.has_value()) return std::move(index_);
  CheckWeightMap();
  index_.metadata = located_.index->metadata;
  // The index decides which files there are: it is part of what was loaded.
  index_.files.push_back(*located_.index_file);
  return std::move(index_);
}

}  // namespace ckptd::torch
