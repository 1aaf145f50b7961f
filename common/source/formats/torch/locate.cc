#include "common/source/formats/torch/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/torch/choose.h"
#include "common/source/text.h"

namespace ckptd::torch {
namespace {

// "/a/b.pt" -> "/a"; "/b.pt" -> "".
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// All that are missing, at once.
absl::Status CheckThere(const Storage& storage, const LocatedFiles& located) {
  std::vector<std::string> missing;
  for (const std::string& name : located.names) {
    const auto found = storage.Stat(located.folder + "/" + name);
    if (found.status().code() == absl::StatusCode::kNotFound) missing.push_back(name);
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(located.folder, missing,
                      fmt::format("index {} names them: finish the download, or correct the index",
                                  located.index_path));
}

absl::StatusOr<LocatedFiles> LocateByIndex(const Storage& storage, const std::string& path) {
  absl::StatusOr<TextObject> read = ReadText(storage, path, kMaxIndexJsonBytes);
  if (!read.ok()) return WithFact(read.status(), "file", path);
  absl::StatusOr<IndexJson> index = ParseIndexJson(read->text, ".bin");
  if (!index.ok()) {
    return WithFact(WithContext(index.status(), "reading index " + path), "file", path);
  }
  std::set<std::string> names;
  for (const auto& entry : index->weight_map) names.insert(entry.second);
  if (names.size() > kMaxSourceFiles) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: it has {} files, at most {} are read; merge them "
                                 "into larger ones",
                                 path, names.size(), kMaxSourceFiles),
                     {{"file", path}});
  }
  LocatedFiles out;
  out.folder = FolderOf(path);
  out.names.assign(names.begin(), names.end());
  out.index_path = path;
  for (const std::string& remark : index->remarks) {
    out.remarks.push_back(fmt::format("index {}: {}", path, remark));
  }
  out.index = *std::move(index);
  out.index_file = std::move(read->identity);
  CKPTD_RETURN_IF_ERROR(CheckThere(storage, out));
  return out;
}

}  // namespace

absl::StatusOr<LocatedFiles> LocateFiles(const Storage& storage, const Listing& listing) {
  const std::string& source = listing.source;
  LocatedFiles out;
  if (!listing.is_folder) {
    if (source.ends_with(".json")) {
      CKPTD_RETURN_IF_ERROR(CheckPart(listing, {"model"}));
      return LocateByIndex(storage, source);
    }
    out.folder = FolderOf(source);
    out.names = {source.substr(out.folder.size() + 1)};
    return out;
  }
  CKPTD_ASSIGN_OR_RETURN(FilesChoice choice, ChooseFiles(listing));
  if (!choice.index.empty()) {
    CKPTD_ASSIGN_OR_RETURN(out, LocateByIndex(storage, source + "/" + choice.index));
  } else {
    out.folder = source;
    out.names = std::move(choice.names);
  }
  std::erase_if(choice.left_out, [&out](const std::string& name) {
    return std::find(out.names.begin(), out.names.end(), name) != out.names.end();
  });
  if (!choice.left_out.empty()) {
    out.remarks.push_back(fmt::format("left out {}: {} counts in this folder; name a file or an "
                                      "index to load another one",
                                      Listed(choice.left_out),
                                      choice.index.empty() ? Listed(out.names) : choice.index));
  }
  return out;
}

}  // namespace ckptd::torch
