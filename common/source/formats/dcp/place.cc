#include "common/source/formats/dcp/place.h"

#include <fmt/format.h>
#include <rapidjson/document.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd::dcp {
namespace {

bool Has(const Listing& listing, std::string_view name) {
  return std::binary_search(listing.names.begin(), listing.names.end(), name);
}

// The number between the two in a name.
std::optional<uint32_t> NumberIn(std::string_view name, std::string_view before,
                                 std::string_view behind) {
  if (name.size() <= before.size() + behind.size()) return std::nullopt;
  if (!name.starts_with(before) || !name.ends_with(behind)) return std::nullopt;
  name.remove_prefix(before.size());
  name.remove_suffix(behind.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool is_number = error == std::errc() && end == name.data() + name.size();
  return is_number ? std::optional(number) : std::nullopt;
}

// Folders below that accelerate writes for this part, the lowest number first.
std::vector<std::string> FoldersBelow(const Listing& listing, std::string_view part) {
  const std::string_view before = part == "optimizer" ? "optimizer_" : "pytorch_model_fsdp_";
  std::vector<std::pair<uint32_t, std::string>> found;
  if (part.empty() || part == "model" || part == "optimizer") {
    for (const std::string& name : listing.names) {
      const auto number = NumberIn(name, before, "");
      if (number.has_value()) found.emplace_back(*number, name);
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (auto& [number, name] : found) names.push_back(std::move(name));
  return names;
}

bool HasSafetensors(const Listing& listing) {
  return std::any_of(listing.names.begin(), listing.names.end(), [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
  });
}

// Whether there is a .metadata that a rank wrote for itself (use_collectives=False).
bool HasRanks(const Listing& listing) {
  return std::any_of(listing.names.begin(), listing.names.end(), [](const std::string& name) {
    return NumberIn(name, "__", kMetadata).has_value();
  });
}

// `bytes`: at most four.
bool BeginsWith(const Storage& storage, const std::string& path, std::string_view bytes) {
  const auto object = storage.Open(path);
  std::array<std::byte, 4> start = {};
  const auto read = std::span(start).first(bytes.size());
  return object.ok() && (*object)->ReadAt((*object)->begin(), read).ok() &&
         std::memcmp(read.data(), bytes.data(), bytes.size()) == 0;
}
bool BeginsAsPickle(const Storage& storage, const std::string& path) {
  return BeginsWith(storage, path, "\x80");
}

// Objects of torch.save, one behind the other. The whole signature counts: a safetensors file whose
// header has 80 bytes, or 336, begins with a "P" too.
bool IsPiece(const Storage& storage, const Listing& listing) {
  return !listing.is_folder && listing.source.ends_with(".distcp") &&
         BeginsWith(storage, listing.source, "PK\x03\x04");
}

// Megatron-Core's older form: metadata.json says so, and each tensor is a folder.
bool IsZarrOfMegatron(const Storage& storage, const Listing& listing) {
  constexpr size_t kMaxJsonBytes = 1'000'000;
  if (Has(listing, kMetadata) || !Has(listing, "metadata.json")) return false;
  const auto read = ReadText(storage, listing.source + "/metadata.json", kMaxJsonBytes);
  rapidjson::Document json;
  if (!read.ok() || ParseJson(read->text, JsonNumbers::kOfKind, json).has_value()) return false;
  if (!json.IsObject()) return false;
  const auto backend = json.FindMember("sharded_backend");
  return backend != json.MemberEnd() && backend->value.IsString() &&
         std::string_view(backend->value.GetString()) == "zarr";
}

absl::Status Unsupported(const Listing& listing, std::string_view why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                   fmt::format("opening {}: {}", listing.source, why),
                   {{"file", listing.source}});
}

// A folder of accelerate's save_state.
absl::StatusOr<Place> FindBelow(const Storage& storage, const Listing& listing) {
  const std::vector<std::string> below = FoldersBelow(listing, listing.part);
  const std::string path = listing.source + "/" + below.front();
  CKPTD_ASSIGN_OR_RETURN(Listing folder, ListSource(storage, path));
  if (!Has(folder, kMetadata)) {
    return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                     fmt::format("opening {}: it has no {}, which is written last: the save did not "
                                 "finish, or another node has it; load an earlier checkpoint, or "
                                 "copy the files of all nodes into this folder",
                                 path, kMetadata),
                     {{"file", path + "/" + kMetadata}});
  }
  folder.part = listing.part;
  std::string remark;
  if (below.size() > 1) {
    remark = fmt::format("{} of its {} such folders is read; name another one to load that",
                         below.front(), below.size());
  } else if (!FoldersBelow(listing, "optimizer").empty() && listing.part.empty()) {
    remark = fmt::format("{} is read, part \"model\"; name {}#optimizer for the optimizer",
                         below.front(), listing.source);
  }
  return Place{std::move(folder), std::move(remark)};
}

}  // namespace

bool IsDcp(const Storage& storage, const Listing& listing) {
  if (!listing.is_folder) {
    return IsPiece(storage, listing) || (listing.source.ends_with(std::string("/") + kMetadata) &&
                                BeginsAsPickle(storage, listing.source));
  }
  // A model that was exported beside its checkpoint is what people mean by the folder.
  const bool means_model = listing.part.empty() || listing.part == "model";
  if (means_model && HasSafetensors(listing)) return false;
  if (Has(listing, kMetadata) || HasRanks(listing)) return true;
  if (IsZarrOfMegatron(storage, listing)) return true;
  return !FoldersBelow(listing, listing.part).empty();
}

absl::StatusOr<Place> FindPlace(const Storage& storage, const Listing& listing) {
  if (IsPiece(storage, listing)) {
    return Unsupported(listing, "it is one rank's piece of a DCP save; name its folder");
  }
  if (!listing.is_folder) {
    const std::string folder = listing.source.substr(0, listing.source.rfind('/'));
    CKPTD_ASSIGN_OR_RETURN(Listing beside, ListSource(storage, folder));
    beside.part = listing.part;
    return Place{std::move(beside), ""};
  }
  if (Has(listing, kMetadata)) return Place{listing, ""};
  if (!FoldersBelow(listing, listing.part).empty()) return FindBelow(storage, listing);
  std::vector<std::string_view> parts;
  for (const std::string_view part : {"model", "optimizer"}) {
    if (!FoldersBelow(listing, part).empty()) parts.push_back(part);
  }
  if (!parts.empty()) return NoSuchPart(listing, parts);
  if (IsZarrOfMegatron(storage, listing)) {
    return Unsupported(listing,
                       "it is a checkpoint of Megatron-Core's zarr form (sharded_backend \"zarr\"), "
                       "which is not read; convert it by Megatron-LM (--ckpt-convert-format "
                       "torch_dist --ckpt-convert-save FOLDER, with a Megatron-Core that still has "
                       "zarr), and load what that wrote");
  }
  return Unsupported(listing,
                     "each rank has saved its part on its own (use_collectives=False, files such as "
                     "__0.metadata), and nothing says how these fit together; load it with as many "
                     "ranks by torch, and save it with collectives");
}

}  // namespace ckptd::dcp
