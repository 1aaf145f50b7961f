#include "common/source/formats/torch_checkpointing/items.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "common/base/escape.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"
#include "common/source/text.h"

namespace ckptd::torch_checkpointing {
namespace {

constexpr std::string_view kModel = "model";
constexpr std::string_view kOptimizer = "optimizer";
constexpr std::string_view kExtra = "extra";
constexpr std::string_view kAll = "all";

struct ByName {
  std::string item;
  uint32_t rank = 0;
  Encoding encoding = Encoding::kTorch;
};

// "model_3.pt" is item "model" of rank 3.
std::optional<ByName> ParseName(std::string_view name) {
  constexpr std::pair<std::string_view, Encoding> kExtensions[] = {
      {".pt", Encoding::kTorch},
      {".safetensors", Encoding::kSafetensors},
      {".json", Encoding::kJson}};
  constexpr std::string_view kOfItems =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
  for (const auto& [extension, encoding] : kExtensions) {
    if (!name.ends_with(extension)) continue;
    const std::string_view stem = name.substr(0, name.size() - extension.size());
    const size_t at = stem.rfind('_');
    if (at == std::string_view::npos || at == 0) return std::nullopt;
    const std::string_view digits = stem.substr(at + 1);
    uint32_t rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    const bool is_rank = error == std::errc() && end == digits.data() + digits.size() &&
                         (digits == "0" || digits.front() != '0');
    const bool is_item = stem.find_first_not_of(kOfItems) == std::string_view::npos;
    // Others number files so: "model_rank_3.pt".
    if (!is_rank || !is_item || stem.substr(0, at).ends_with("rank")) return std::nullopt;
    return ByName{std::string(stem.substr(0, at)), rank, encoding};
  }
  return std::nullopt;
}

bool IsThere(const Storage& storage, const Listing& listing, const std::string& name) {
  if (std::binary_search(listing.names.begin(), listing.names.end(), name)) return true;
  const bool is_below = name.find('/') != std::string::npos;
  return is_below && storage.Stat(listing.source + "/" + name).ok();
}

absl::Status Invalid(const Listing& listing, absl::StatusCode code, const std::string& why) {
  return MakeError(code, reason::kSourceInvalid,
                   fmt::format("opening {}: {}", listing.source, why), {{"file", listing.source}});
}

// Normalises the paths of an item's files. `used` has those of the items before.
absl::Status AddFiles(const Listing& listing, const Metadata& metadata, FoundItem& found,
                      std::set<std::string>& used) {
  const std::string path =
      fmt::format("its {} puts item {}", kMetadata, Quoted(Escape(found.name)));
  for (uint32_t rank = 0; rank < metadata.ranks; ++rank) {
    const auto layout = found.item->layouts.find(rank);
    Layout file{fmt::format("{}_{}.pt", found.name, rank)};
    if (layout != found.item->layouts.end()) file = layout->second;
    if (const std::string_view why = WhyUnsafe(file.name); !why.empty()) {
      return Invalid(listing, absl::StatusCode::kInvalidArgument,
                     fmt::format("{} into file {}, {}; copy the checkpoint again", path,
                                 Quoted(Escape(file.name)), why));
    }
    file.name = std::filesystem::path(file.name).lexically_normal().string();
    if (!used.insert(file.name).second) {
      return Invalid(listing, absl::StatusCode::kDataLoss,
                     fmt::format("{} into file {}, as another one of a rank; save it with a "
                                 "{{rank}} in its path",
                                 path, Quoted(Escape(file.name))));
    }
    if (used.size() > kMaxSourceFiles) {
      return Invalid(listing, absl::StatusCode::kInvalidArgument,
                     fmt::format("its items lie in more than {} files", kMaxSourceFiles));
    }
    found.files.emplace(rank, std::move(file));
  }
  return absl::OkStatus();
}

// Files that are not there and whose ranks have a part of a tensor that no other has. Other files
// that are not there are taken out.
std::vector<std::string> TakeMissing(FoundItem& found, const std::set<uint32_t>& missing) {
  std::set<uint32_t> needed;
  for (const auto& [name, shardings] : found.item->tensors) {
    const Sharding& first = shardings.front();
    const bool is_whole = first.mesh != nullptr &&
                          std::all_of(first.placements.begin(), first.placements.end(),
                                      [](const Placement& placement) {
                                        return placement.kind == Placement::Kind::kReplicate;
                                      });
    if (is_whole) {
      const bool has_one = std::any_of(first.ranks.begin(), first.ranks.end(), [&](uint32_t rank) {
        return found.files.contains(rank) && !missing.contains(rank);
      });
      if (!has_one) needed.insert(first.ranks.front());
      continue;
    }
    for (const Sharding& sharding : shardings) {
      if (&sharding != &first && first.mesh != nullptr) break;  // only the first one counts
      needed.insert(sharding.ranks.begin(), sharding.ranks.end());
    }
  }
  std::vector<std::string> names;
  for (const uint32_t rank : missing) {
    const bool has_layout = found.item->layouts.contains(rank);
    if (has_layout || needed.contains(rank)) names.push_back(found.files.at(rank).name);
    found.files.erase(rank);
  }
  return names;
}

// Items by name, for a sentence.
std::string PartsOf(const std::map<std::string, FoundItem>& found) {
  constexpr size_t kMost = 20;
  std::vector<std::string> parts = {std::string(kAll)};
  for (const auto& [name, item] : found) {
    if (parts.size() < kMost) parts.push_back(Escape(name));
  }
  return fmt::format("#{}", fmt::join(parts, ", #"));
}

// The names of the items that make a part.
absl::StatusOr<std::set<std::string>> NamesOfPart(const Listing& listing,
                                                  const std::map<std::string, FoundItem>& found) {
  if (found.contains(listing.part)) return std::set<std::string>{listing.part};
  const std::string_view part = listing.part.empty() ? kModel : std::string_view(listing.part);
  if (part == kModel && found.contains(std::string(kModel))) {
    return std::set<std::string>{std::string(kModel)};
  }
  std::set<std::string> names;
  for (const auto& [name, item] : found) {
    const Role role = RoleOf(name);
    const bool is_of = part == kAll || (part == kModel && role == Role::kModel) ||
                       (part == kOptimizer && role == Role::kOptimizer) ||
                       (part == kExtra && role == Role::kExtra);
    if (is_of) names.insert(name);
  }
  const bool is_clear = listing.part.empty() && found.size() == 1;
  if (names.empty() && is_clear) names.insert(found.begin()->first);
  if (names.empty() || (part == kModel && names.size() > 1)) {
    return Invalid(listing, absl::StatusCode::kInvalidArgument,
                   fmt::format("{} of its {} items {}; name what to load ({})",
                               names.empty() ? "none" : "more than one", found.size(),
                               part == kModel ? "is a model" : fmt::format("is part \"{}\"", part),
                               PartsOf(found)));
  }
  return names;
}

}  // namespace

Role RoleOf(std::string_view item) {
  if (item.starts_with("optim") || item == "opt") return Role::kOptimizer;
  const bool is_model = item.starts_with(kModel) || item == "module" || item == "state_dict";
  return is_model ? Role::kModel : Role::kExtra;
}

absl::StatusOr<std::map<std::string, FoundItem>> FindItems(const Storage& storage,
                                                           const Listing& listing,
                                                           const Metadata* metadata) {
  std::map<std::string, FoundItem> out;
  std::set<std::string> used;
  if (metadata != nullptr) {
    for (const auto& [name, item] : metadata->items) {
      FoundItem& found = out[name];
      found.name = name;
      found.item = &item;
      CKPTD_RETURN_IF_ERROR(AddFiles(listing, *metadata, found, used));
      std::set<uint32_t> not_there;
      for (const auto& [rank, file] : found.files) {
        if (!IsThere(storage, listing, file.name)) not_there.insert(rank);
      }
      found.missing = TakeMissing(found, not_there);
    }
  }
  for (const std::string& name : listing.names) {
    std::optional<ByName> parsed = ParseName(name);
    if (!parsed.has_value() || used.contains(name)) continue;
    const bool is_of_save = metadata == nullptr || parsed->rank < metadata->ranks;
    if (!is_of_save || parsed->rank >= kMaxSourceFiles) continue;
    FoundItem& found = out[parsed->item];
    if (found.item != nullptr) continue;
    found.name = parsed->item;
    found.files.emplace(parsed->rank, Layout{name, parsed->encoding});
  }
  return out;
}

absl::StatusOr<Choice> ChooseItems(const Listing& listing,
                                   std::map<std::string, FoundItem> found) {
  CKPTD_ASSIGN_OR_RETURN(const std::set<std::string> names, NamesOfPart(listing, found));
  Choice out;
  out.has_prefixes = names.size() > 1 || listing.part == kAll;
  if (names.size() < found.size()) {
    out.remark = fmt::format("read {} of its {} items; name others by their part ({})",
                             Listed({names.begin(), names.end()}), found.size(), PartsOf(found));
  }
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    FoundItem& item = found.at(name);
    std::move(item.missing.begin(), item.missing.end(), std::back_inserter(missing));
    for (const auto& [rank, file] : item.files) out.names.push_back(file.name);
    out.items.push_back(std::move(item));
  }
  if (!missing.empty()) {
    return FilesMissing(listing.source, missing,
                        "copy them there from the nodes that saved them, all ranks are needed");
  }
  std::sort(out.names.begin(), out.names.end());
  return out;
}

}  // namespace ckptd::torch_checkpointing
