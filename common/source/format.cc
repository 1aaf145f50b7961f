#include "common/source/format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/piece.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

absl::Status Impossible(const CheckpointIndex& index, const TensorEntry& tensor,
                        const Piece& piece, std::string_view why) {
  const std::string& path = index.files[piece.file].path;
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("reading {}: tensor {} cannot lie there: {}; copy or save the "
                               "checkpoint again",
                               path, Quoted(tensor.name), why),
                   {{"file", path}, {"tensor", tensor.name}});
}

}  // namespace

absl::StatusOr<Listing> ListSource(const Storage& storage, const std::string& source) {
  CKPTD_ASSIGN_OR_RETURN(const Storage::Found found, storage.Stat(source));
  Listing out;
  out.source = source;
  out.is_folder = found.is_folder;
  if (!out.is_folder) return out;
  CKPTD_RETURN_IF_ERROR(storage.List(source, [&out](std::string_view name) {
    out.names.emplace_back(name);
    return out.names.size() <= kMaxFolderEntries;
  }));
  if (out.names.size() > kMaxFolderEntries) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: more than {} entries in this folder; name the "
                                 "index or the file to load",
                                 source, kMaxFolderEntries),
                     {{"file", source}});
  }
  std::sort(out.names.begin(), out.names.end());
  return out;
}

bool HasUsualWeights(const Listing& listing) {
  return std::any_of(listing.names.begin(), listing.names.end(), [](const std::string& name) {
    return name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") ||
           name == "pytorch_model.bin" || name == "pytorch_model.bin.index.json";
  });
}

absl::Status FilesMissing(const std::string& folder, const std::vector<std::string>& names,
                          std::string_view advice) {
  constexpr size_t kRoom = 1200;  // bytes of the sentence
  std::string listed;
  size_t shown = 0;
  for (; shown < names.size(); ++shown) {
    const std::string name = Quoted(names[shown]);
    if (shown > 0 && listed.size() + name.size() > kRoom) break;
    listed += (shown == 0 ? "" : ", ") + name;
  }
  if (shown < names.size()) listed += fmt::format(" and {} more", names.size() - shown);
  return MakeError(absl::StatusCode::kNotFound, reason::kSourceNotFound,
                   fmt::format("opening {}: it lacks {}; {}", folder, listed, advice),
                   {{"file", folder + "/" + names.front()}});
}

absl::Status FinishTensors(CheckpointIndex& index) {
  std::vector<TensorEntry>& tensors = index.tensors;
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; });
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& tensor = tensors[i];
    if (i > 0 && tensors[i - 1].name == tensor.name) {
      return Impossible(index, tensor, tensor.pieces.front(), "there is another one of that name");
    }
    for (const Piece& piece : tensor.pieces) {
      const std::string_view why = WhyImpossible(piece, tensor, index.files[piece.file].bytes);
      if (!why.empty()) return Impossible(index, tensor, piece, why);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const Listing& listing, std::initializer_list<std::string_view> parts) {
  const bool has = listing.part.empty() ||
                   std::find(parts.begin(), parts.end(), listing.part) != parts.end();
  return has ? absl::OkStatus() : NoSuchPart(listing, parts);
}

absl::Status NoSuchPart(const Listing& listing, std::span<const std::string_view> parts) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                   fmt::format("opening {}: it has no part \"{}\"; name one that it has (#{}), or "
                               "none for its default",
                               listing.source, listing.part, fmt::join(parts, ", #")),
                   {{"file", listing.source}, {"part", listing.part}});
}

}  // namespace ckptd
