#include "common/source/formats/torch_checkpointing/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/torch_checkpointing/items.h"
#include "common/source/formats/torch_checkpointing/metadata.h"
#include "common/source/formats/torch_checkpointing/read.h"
#include "common/source/pickle/pickle.h"
#include "common/source/ranks/shards.h"
#include "common/source/torch/file.h"

namespace ckptd {
namespace {

using torch_checkpointing::Choice;
using torch_checkpointing::FoundItem;
using torch_checkpointing::kMetadata;
using torch_checkpointing::Metadata;
using torch_checkpointing::Role;

std::string MetadataPath(const Listing& listing) { return listing.source + "/" + kMetadata; }

bool HasMetadata(const Listing& listing) {
  return std::binary_search(listing.names.begin(), listing.names.end(), kMetadata);
}

// By its first key. Other tools write files of that name, too.
bool BeginsAsMetadata(const Storage& storage, const std::string& path) {
  constexpr size_t kHeadBytes = 64;
  const auto object = storage.Open(path);
  if (!object.ok()) return false;
  std::string head(std::min<uint64_t>((*object)->size(), kHeadBytes), '\0');
  if (!(*object)->ReadAt(0, std::as_writable_bytes(std::span(head))).ok()) return false;
  const auto has = [&head](const char* key) { return head.find(key) != std::string::npos; };
  return head.starts_with('\x80') && (has("metadata") || has("world_size"));
}

struct Found {
  std::optional<Metadata> metadata;
  std::optional<SourceFile> file;  // of the metadata
  Choice choice;
  uint32_t ranks = 0;
};

absl::StatusOr<Metadata> ReadMetadata(const Storage& storage, const std::string& path,
                                      std::optional<SourceFile>& file) {
  CKPTD_ASSIGN_OR_RETURN(const pickle::Parsed parsed,
                         torch::ReadPickle(storage, path, file.emplace()));
  return torch_checkpointing::ReadMetadata(*parsed.document.root);
}

// A folder without its tensors.
absl::StatusOr<Found> Find(const Storage& storage, const Listing& listing) {
  Found out;
  if (HasMetadata(listing)) {
    const std::string path = MetadataPath(listing);
    absl::StatusOr<Metadata> metadata = ReadMetadata(storage, path, out.file);
    if (!metadata.ok() && FactsOf(metadata.status()).contains("file")) return metadata.status();
    if (!metadata.ok()) {
      return WithFact(WithContext(metadata.status(), "reading " + path), "file", path);
    }
    out.metadata = *std::move(metadata);
  }
  const Metadata* const metadata = out.metadata.has_value() ? &*out.metadata : nullptr;
  CKPTD_ASSIGN_OR_RETURN(auto items,
                         torch_checkpointing::FindItems(storage, listing, metadata));
  out.ranks = metadata == nullptr ? 0 : metadata->ranks;
  for (const auto& [name, item] : items) {
    if (!item.files.empty()) out.ranks = std::max(out.ranks, item.files.rbegin()->first + 1);
  }
  CKPTD_ASSIGN_OR_RETURN(out.choice, torch_checkpointing::ChooseItems(listing, std::move(items)));
  return out;
}

// Whether a folder without metadata.pkl has more than files of torch that somebody numbered: the
// model and more of one rank, or tensors that lie on several ranks.
bool SpeaksOfRanks(const Storage& storage, const Listing& listing) {
  auto items = torch_checkpointing::FindItems(storage, listing, nullptr);
  if (!items.ok()) return false;
  uint32_t ranks = 0;
  for (const auto& [name, item] : *items) ranks = std::max(ranks, item.files.rbegin()->first + 1);
  const auto model = std::find_if(items->begin(), items->end(), [](const auto& item) {
    return torch_checkpointing::RoleOf(item.first) == Role::kModel &&
           item.second.files.begin()->second.encoding == torch_checkpointing::Encoding::kTorch;
  });
  if (model == items->end()) return false;
  const bool has_more = std::any_of(items->begin(), items->end(), [](const auto& item) {
    return torch_checkpointing::RoleOf(item.first) == Role::kExtra;
  });
  if (ranks == 1 && has_more) return true;
  const auto file = torch::ReadFile(
      storage, listing.source + "/" + model->second.files.begin()->second.name);
  if (!file.ok()) return false;
  ranks::BoxBudget budget;
  const auto state = ranks::RankStateOf(*file, "", budget);
  return state.ok() && state->ranks.size() > 1;
}

uint32_t GroupOf(CheckpointIndex& index, const std::string& item) {
  if (torch_checkpointing::RoleOf(item) == Role::kModel) return 0;
  index.groups.push_back(item);
  return static_cast<uint32_t>(index.groups.size() - 1);
}

// Adds what one item has.
void Append(OpenedCheckpoint item, const std::string& name, OpenedCheckpoint& out) {
  const Role role = torch_checkpointing::RoleOf(name);
  const uint32_t group = GroupOf(out.index, name);
  for (TensorEntry& tensor : item.index.tensors) {
    tensor.group = group;
    if (role == Role::kOptimizer) tensor.kind = EntryKind::kOptimizer;
    if (role == Role::kExtra && tensor.kind == EntryKind::kParameter) {
      tensor.kind = EntryKind::kBuffer;
    }
    out.index.tensors.push_back(std::move(tensor));
  }
  out.index.values.merge(item.index.values);
  out.index.opaque.merge(item.index.opaque);
  out.index.aliases.merge(item.index.aliases);
  out.index.metadata.merge(item.index.metadata);
  std::move(item.remarks.begin(), item.remarks.end(), std::back_inserter(out.remarks));
}

absl::Status CheckValues(const Listing& listing, const CheckpointIndex& index) {
  if (index.values.size() + index.opaque.size() <= kMaxSourceValues) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it holds more than {} values that are no tensors; load "
                               "a part of it",
                               listing.source, kMaxSourceValues),
                   {{"file", listing.source}});
}

}  // namespace

bool TorchCheckpointingFormat::Recognise(const Storage& storage, const Listing& listing) const {
  if (!listing.is_folder) return false;
  const bool means_model = listing.part.empty() || listing.part == "model";
  if (HasMetadata(listing)) {
    // A model that was consolidated beside its checkpoint is what people mean by the folder.
    const bool is_consolidated =
        means_model &&
        std::any_of(listing.names.begin(), listing.names.end(), [](const std::string& name) {
          return name.ends_with(".safetensors.index.json");
        });
    return !is_consolidated && BeginsAsMetadata(storage, MetadataPath(listing));
  }
  return !(means_model && HasUsualWeights(listing)) && SpeaksOfRanks(storage, listing);
}

absl::Status TorchCheckpointingFormat::Check(const Storage& storage, const Listing& listing) const {
  return Find(storage, listing).status();
}

absl::StatusOr<OpenedCheckpoint> TorchCheckpointingFormat::ReadIndex(const Storage& storage,
                                                                     const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(Found found, Find(storage, listing));
  OpenedCheckpoint out;
  std::map<std::string, SourceFile> files;
  for (const FoundItem& item : found.choice.items) {
    const torch_checkpointing::Reading reading{
        storage,      listing.source, found.ranks, found.choice.has_prefixes ? item.name : "",
        found.choice, files};
    CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint one, torch_checkpointing::ReadItem(reading, item));
    Append(std::move(one), item.name, out);
    CKPTD_RETURN_IF_ERROR(CheckValues(listing, out.index));
  }
  for (auto& [name, file] : files) out.index.files.push_back(std::move(file));
  if (found.metadata.has_value()) {
    out.index.metadata.emplace("torch_checkpointing_version", found.metadata->version);
    out.index.files.push_back(*std::move(found.file));
  }
  if (!found.choice.remark.empty()) out.remarks.push_back(std::move(found.choice.remark));
  CKPTD_RETURN_IF_ERROR(FinishTensors(out.index));
  return out;
}

absl::StatusOr<bool> TorchCheckpointingFormat::StillMeans(
    const Storage& storage, const Listing& listing, const std::vector<SourceFile>& files) const {
  CKPTD_ASSIGN_OR_RETURN(const Found found, Find(storage, listing));
  std::vector<std::string> names = found.choice.names;
  if (found.metadata.has_value()) names.emplace_back(kMetadata);
  return std::equal(files.begin(), files.end(), names.begin(), names.end(),
                    [&](const SourceFile& file, const std::string& name) {
                      return file.path == listing.source + "/" + name;
                    });
}

}  // namespace ckptd
