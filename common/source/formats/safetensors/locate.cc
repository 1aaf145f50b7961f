#include "common/source/formats/safetensors/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/safetensors/choose.h"
#include "common/source/formats/safetensors/config_json.h"
#include "common/source/formats/safetensors/folder.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr std::string_view kExtension = ".safetensors";

// What the model's config.json says to load in place of the usual files, as transformers'
// from_pretrained heeds it; empty: nothing.
absl::StatusOr<FolderChoice> ChooseByConfig(const Storage& storage, const std::string& folder) {
  const std::string path = folder + "/config.json";
  const absl::StatusOr<TextObject> read = ReadText(storage, path, kMaxConfigJsonBytes);
  if (read.status().code() == absl::StatusCode::kNotFound) return FolderChoice();
  // It may name other weights than the usual files, so it is not passed over.
  if (!read.ok()) return WithFact(read.status(), "file", path);
  absl::StatusOr<std::string> name = WeightsNamedBy(read->text);
  if (!name.ok()) return WithFact(WithContext(name.status(), "reading " + path), "file", path);
  if (name->empty()) return FolderChoice();
  if (name->ends_with(".json")) return FolderChoice{*std::move(name), {}};
  return FolderChoice{"", {*std::move(name)}};
}

absl::StatusOr<FolderChoice> ChooseInFolder(const Storage& storage, const std::string& folder,
                                            const FolderContents& contents) {
  if (contents.has_config) {
    CKPTD_ASSIGN_OR_RETURN(FolderChoice named, ChooseByConfig(storage, folder));
    if (!named.index.empty() || !named.names.empty()) return named;
  }
  return ChooseFiles(folder, contents);
}

void RemarkLeftOut(const FolderContents& contents, const std::string& index, LocatedFiles& out) {
  std::vector<std::string> left_out;
  for (const auto* names : {&contents.safetensors, &contents.indices}) {
    std::copy_if(names->begin(), names->end(), std::back_inserter(left_out), [&](const auto& name) {
      return name != index && !std::binary_search(out.names.begin(), out.names.end(), name);
    });
  }
  std::copy_if(contents.torch.begin(), contents.torch.end(), std::back_inserter(left_out),
               [](const auto& name) { return name.starts_with("pytorch_model"); });
  if (left_out.empty()) return;
  out.remarks.push_back(fmt::format("left out {}: {} counts in this folder; name a file or an "
                                    "index to load another one",
                                    Listed(left_out), index.empty() ? Listed(out.names) : index));
}

absl::StatusOr<LocatedFiles> LocateInFolder(const Storage& storage, const Listing& listing) {
  const std::string& folder = listing.source;
  const FolderContents contents = ContentsOf(listing);
  CKPTD_ASSIGN_OR_RETURN(FolderChoice choice, ChooseInFolder(storage, folder, contents));
  LocatedFiles out;
  if (!choice.index.empty()) {
    CKPTD_ASSIGN_OR_RETURN(out, LocateByIndex(storage, folder + "/" + choice.index, kExtension));
  } else {
    CKPTD_RETURN_IF_ERROR(CheckFileCount(folder, choice.names.size()));
    out.folder = folder;
    out.names = std::move(choice.names);
  }
  RemarkLeftOut(contents, choice.index, out);
  return out;
}

}  // namespace

bool IsOfSafetensors(const Storage& storage, const Listing& listing) {
  const FolderContents contents = ContentsOf(listing);
  if (contents.safetensors.empty() && contents.indices.empty()) return false;
  if (!PicklesComeFirst(contents)) return true;
  if (!contents.has_config) return false;
  const absl::StatusOr<FolderChoice> named = ChooseByConfig(storage, listing.source);
  return !named.ok() || !named->index.empty() || !named->names.empty();
}

absl::StatusOr<bool> FindsStill(const Storage& storage, const Listing& listing,
                                const std::vector<SourceFile>& files) {
  if (!listing.is_folder) return true;
  CKPTD_ASSIGN_OR_RETURN(const FolderChoice choice,
                         ChooseInFolder(storage, listing.source, ContentsOf(listing)));
  const std::string folder = listing.source + "/";
  if (!choice.index.empty()) return !files.empty() && files.back().path == folder + choice.index;
  return std::equal(files.begin(), files.end(), choice.names.begin(), choice.names.end(),
                    [&](const auto& file, const auto& name) { return file.path == folder + name; });
}

absl::StatusOr<LocatedFiles> LocateFiles(const Storage& storage, const Listing& listing) {
  const std::string& source = listing.source;
  CKPTD_RETURN_IF_ERROR(CheckPart(listing, {"model"}));
  if (listing.is_folder) return LocateInFolder(storage, listing);
  if (source.ends_with(".json")) return LocateByIndex(storage, source, kExtension);
  return LocateOneFile(source);
}

}  // namespace ckptd
