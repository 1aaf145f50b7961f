#include "common/source/formats/torch_checkpointing/read.h"

#include <fmt/format.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/escape.h"
#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/ranks/merge.h"
#include "common/source/ranks/shards.h"
#include "common/source/safetensors/file.h"
#include "common/source/text.h"
#include "common/source/torch/file.h"

namespace ckptd::torch_checkpointing {
namespace {

using ranks::LocalTensor;
using ranks::RankState;

constexpr size_t kMaxJsonBytes = 64 << 20;

std::string Below(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

bool IsContainer(const pickle::Value& value) {
  return value.is(pickle::Kind::kDict) || value.is(pickle::Kind::kList) ||
         value.is(pickle::Kind::kTuple);
}

// Whether it is known how at least some of its tensors lie over ranks.
bool IsDescribed(const FoundItem& found) {
  return found.item != nullptr &&
         std::any_of(found.item->tensors.begin(), found.item->tensors.end(),
                     [](const auto& tensor) { return tensor.second.front().foreign.empty(); });
}

// Files of one item, rank by rank.
class ItemReader {
 public:
  ItemReader(const Reading& reading, const FoundItem& found)
      : reading_(reading),
        found_(found),
        root_(reading.prefix.empty() ? found.name : reading.prefix),
        own_names_(RoleOf(found.name) == Role::kExtra && reading.ranks > 1 && !IsDescribed(found)) {
  }

  absl::StatusOr<OpenedCheckpoint> Read();

 private:
  absl::StatusOr<RankState> ReadFile(const Layout& layout, const std::string& prefix);
  absl::StatusOr<RankState> ReadSafetensors(const std::string& path, const std::string& prefix);
  absl::StatusOr<RankState> ReadJsonFile(const std::string& path, const std::string& prefix) const;
  absl::StatusOr<RankState> ReadRaw(const std::string& path, const std::string& prefix) const;
  // Makes parts of whole tensors of what metadata.pkl describes.
  absl::Status Place(uint32_t rank, RankState& state);
  absl::Status PlaceTensor(uint32_t rank, const torch::NamedTensor& tensor,
                           const std::vector<Sharding>& shardings, RankState& state);
  absl::StatusOr<std::optional<CutTensor>> Cut(const std::string& path, const std::string& name,
                                               const std::vector<Sharding>& shardings,
                                               uint32_t rank, const torch::Tensor& local) const;
  const std::vector<Sharding>* ShardingsOf(const std::string& name) const;
  absl::Status CheckRanks(const std::set<uint32_t>& ranks) const;
  absl::Status CheckAll(const CheckpointIndex& index) const;

  const Reading& reading_;
  const FoundItem& found_;
  // The item's name where it holds none.
  const std::string root_;
  const bool own_names_;  // each rank may have its own
  std::map<std::string, std::string> metadata_;
  ranks::BoxBudget budget_;
};

absl::Status Error(absl::StatusCode code, std::string_view reason, const std::string& path,
                   const std::string& tensor, const std::string& why) {
  return MakeError(code, reason,
                   fmt::format("reading tensor {} of {}: {}", Quoted(Escape(tensor)), path, why),
                   {{"file", path}, {"tensor", tensor}});
}

absl::StatusOr<RankState> ItemReader::ReadSafetensors(const std::string& path,
                                                      const std::string& prefix) {
  CKPTD_ASSIGN_OR_RETURN(SafetensorsFile read, ReadSafetensorsFile(reading_.storage, path));
  RankState state;
  state.file = std::move(read.file);
  for (HeaderTensor& tensor : read.header.tensors) {
    torch::NamedTensor& named = state.plain.tensors.emplace_back();
    named.name = Below(prefix, tensor.name);
    named.tensor.dtype = tensor.dtype;
    named.tensor.shape = std::move(tensor.shape);
    named.tensor.offset = read.data_start + tensor.begin;
  }
  metadata_.merge(read.header.metadata);
  return state;
}

absl::StatusOr<RankState> ItemReader::ReadJsonFile(const std::string& path,
                                                   const std::string& prefix) const {
  CKPTD_ASSIGN_OR_RETURN(TextObject read, ReadText(reading_.storage, path, kMaxJsonBytes));
  rapidjson::Document json;
  if (ParseJson(read.text, JsonNumbers::kOfKind, json).has_value()) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                     fmt::format("reading {}: it is no JSON; copy it again", path),
                     {{"file", path}});
  }
  RankState state;
  state.file = std::move(read.identity);
  const std::string& name = prefix.empty() ? root_ : prefix;
  if (read.text.size() > torch::kMaxValueBytes) {
    state.plain.opaque.emplace(name, "json");
  } else {
    state.plain.values.emplace(name, std::move(read.text));
  }
  return state;
}

// All of it is one object.
absl::StatusOr<RankState> ItemReader::ReadRaw(const std::string& path,
                                              const std::string& prefix) const {
  CKPTD_ASSIGN_OR_RETURN(const auto object, reading_.storage.Open(path));
  RankState state;
  state.file = object->identity();
  torch::NamedTensor& named = state.plain.tensors.emplace_back();
  named.name = prefix.empty() ? root_ : prefix;
  named.kind = EntryKind::kObject;
  named.tensor.dtype = Dtype::kU8;
  named.tensor.shape = {object->size()};
  return state;
}

absl::StatusOr<RankState> ItemReader::ReadFile(const Layout& layout, const std::string& prefix) {
  const std::string path = reading_.folder + "/" + layout.name;
  switch (layout.encoding) {
    case Encoding::kSafetensors:
      return ReadSafetensors(path, prefix);
    case Encoding::kJson:
      return ReadJsonFile(path, prefix);
    case Encoding::kRaw:
      return ReadRaw(path, prefix);
    case Encoding::kTorch:
      break;
  }
  CKPTD_ASSIGN_OR_RETURN(const torch::File file, torch::ReadFile(reading_.storage, path));
  const bool has_name = !prefix.empty() || IsContainer(*file.document.root);
  return ranks::RankStateOf(file, has_name ? prefix : root_, budget_);
}

const std::vector<Sharding>* ItemReader::ShardingsOf(const std::string& name) const {
  if (found_.item == nullptr) return nullptr;
  std::string_view below = name;
  if (!reading_.prefix.empty()) {
    below.remove_prefix(std::min(reading_.prefix.size() + 1, below.size()));
  } else if (name == root_ && !found_.item->tensors.contains(name)) {
    below = "";  // the item is a tensor
  }
  const auto at = found_.item->tensors.find(std::string(below));
  return at == found_.item->tensors.end() ? nullptr : &at->second;
}

absl::StatusOr<std::optional<CutTensor>> ItemReader::Cut(
    const std::string& path, const std::string& name, const std::vector<Sharding>& shardings,
    uint32_t rank, const torch::Tensor& local) const {
  Shape counted = local.shape;
  if (local.dtype == Dtype::kF4 && !counted.empty()) counted.back() /= 2;
  auto cut = CutOf(shardings, rank, counted);
  if (!cut.ok()) {
    return Error(absl::StatusCode::kDataLoss, reason::kSourceInvalid, path, name,
                 MessageOf(cut.status()));
  }
  return cut;
}

absl::Status ItemReader::PlaceTensor(uint32_t rank, const torch::NamedTensor& tensor,
                                     const std::vector<Sharding>& shardings,
                                     RankState& state) {
  const std::string& path = state.file.path;
  if (!shardings.front().foreign.empty()) {
    return Error(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported, path, tensor.name,
                 fmt::format("how it lies over ranks says a {}, a class of the trainer; save it as "
                             "DTensors, or name one rank's file",
                             Quoted(Escape(shardings.front().foreign))));
  }
  CKPTD_ASSIGN_OR_RETURN(std::optional<CutTensor> cut,
                         Cut(path, tensor.name, shardings, rank, tensor.tensor));
  if (!cut.has_value()) return absl::OkStatus();
  LocalTensor local;
  local.name = tensor.name;
  local.dtype = tensor.tensor.dtype;
  local.shape = shardings.front().shape;
  CKPTD_RETURN_IF_ERROR(ranks::AddBoxes(path, tensor.tensor, *std::move(cut), local));
  CKPTD_RETURN_IF_ERROR(budget_.Pay(path, local));
  state.sharded.push_back(std::move(local));
  return absl::OkStatus();
}

absl::Status ItemReader::Place(uint32_t rank, RankState& state) {
  // DTensors say themselves where they lie, but not whether they count.
  std::erase_if(state.sharded, [&](const LocalTensor& tensor) {
    const std::vector<Sharding>* const shardings = ShardingsOf(tensor.name);
    return shardings != nullptr && shardings->front().mesh != nullptr &&
           !std::binary_search(shardings->front().ranks.begin(), shardings->front().ranks.end(),
                               rank);
  });
  std::vector<torch::NamedTensor> plain = std::exchange(state.plain.tensors, {});
  for (torch::NamedTensor& tensor : plain) {
    const std::vector<Sharding>* const shardings = ShardingsOf(tensor.name);
    const bool is_alone = (own_names_ || reading_.ranks == 1) && shardings != nullptr &&
                          !shardings->front().foreign.empty();
    if (shardings == nullptr || is_alone) {
      state.plain.tensors.push_back(std::move(tensor));
      continue;
    }
    CKPTD_RETURN_IF_ERROR(PlaceTensor(rank, tensor, *shardings, state));
  }
  return absl::OkStatus();
}

absl::Status ItemReader::CheckRanks(const std::set<uint32_t>& ranks) const {
  std::vector<std::string> missing;
  for (const uint32_t rank : ranks) {
    if (found_.item != nullptr || found_.files.contains(rank)) continue;
    missing.push_back(fmt::format("{}_{}.pt", found_.name, rank));
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(reading_.folder, missing,
                      "copy them there from the nodes that saved them, all ranks are needed");
}

absl::Status ItemReader::CheckAll(const CheckpointIndex& index) const {
  if (found_.item == nullptr) return absl::OkStatus();
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& tensor : index.tensors) names.insert(tensor.name);
  for (const auto& alias : index.aliases) names.insert(alias.first);
  const std::string path = reading_.folder + "/" + kMetadata;
  for (const auto& [name, shardings] : found_.item->tensors) {
    const std::string whole = name.empty() ? root_ : Below(reading_.prefix, name);
    if (names.contains(whole) || !shardings.front().foreign.empty()) continue;
    const auto opaque = index.opaque.find(whole);
    if (opaque == index.opaque.end()) {
      return Error(absl::StatusCode::kDataLoss, reason::kSourceInvalid, path, whole,
                   fmt::format("the files of item {} do not hold it; copy those of one save there",
                               Quoted(Escape(found_.name))));
    }
    if (opaque->second == "torch.Tensor") continue;  // a remark says why
    return Error(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported, path, whole,
                 fmt::format("it is an object of class {}, which is not read; save it as a "
                             "DTensor, or by SafetensorsSerialization",
                             Quoted(Escape(opaque->second))));
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedCheckpoint> ItemReader::Read() {
  bool own_names = own_names_;
  std::optional<ranks::Merger> merger;
  for (const auto& [rank, layout] : found_.files) {
    const auto prefix = [&, rank = rank] {
      return own_names ? Below(reading_.prefix, fmt::format("rank_{}", rank)) : reading_.prefix;
    };
    CKPTD_ASSIGN_OR_RETURN(RankState state, ReadFile(layout, prefix()));
    if (!merger.has_value() && own_names && !state.sharded.empty()) {
      own_names = false;  // they say themselves how they belong together
      CKPTD_ASSIGN_OR_RETURN(state, ReadFile(layout, prefix()));
    }
    if (!merger.has_value()) merger.emplace(reading_.folder, own_names);
    CKPTD_RETURN_IF_ERROR(CheckRanks(state.ranks));
    if (found_.item != nullptr) CKPTD_RETURN_IF_ERROR(Place(rank, state));
    const auto& names = reading_.choice.names;
    const auto number = std::lower_bound(names.begin(), names.end(), layout.name) - names.begin();
    reading_.files[layout.name] = state.file;
    CKPTD_RETURN_IF_ERROR(merger->Add(std::move(state), static_cast<uint32_t>(number)));
  }
  if (!merger.has_value()) return OpenedCheckpoint();
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint out, merger->Finish());
  out.index.metadata = std::move(metadata_);
  CKPTD_RETURN_IF_ERROR(CheckAll(out.index));
  return out;
}

}  // namespace

absl::StatusOr<OpenedCheckpoint> ReadItem(const Reading& reading, const FoundItem& found) {
  return ItemReader(reading, found).Read();
}

}  // namespace ckptd::torch_checkpointing
