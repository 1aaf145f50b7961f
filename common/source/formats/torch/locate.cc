#include "common/source/formats/torch/locate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/source/formats/torch/choose.h"
#include "common/source/text.h"

namespace ckptd::torch {
namespace {

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

absl::StatusOr<LocatedFiles> LocateWhole(const Storage& storage, const std::string& index) {
  CKPTD_ASSIGN_OR_RETURN(LocatedFiles out, LocateByIndex(storage, index, ".bin"));
  CKPTD_RETURN_IF_ERROR(CheckThere(storage, out));
  return out;
}

}  // namespace

absl::StatusOr<LocatedFiles> LocateFiles(const Storage& storage, const Listing& listing) {
  const std::string& source = listing.source;
  LocatedFiles out;
  if (!listing.is_folder) {
    if (!source.ends_with(".json")) return LocateOneFile(source);
    CKPTD_RETURN_IF_ERROR(CheckPart(listing, {"model"}));
    return LocateWhole(storage, source);
  }
  CKPTD_ASSIGN_OR_RETURN(FilesChoice choice, ChooseFiles(listing));
  if (!choice.index.empty()) {
    CKPTD_ASSIGN_OR_RETURN(out, LocateWhole(storage, source + "/" + choice.index));
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
