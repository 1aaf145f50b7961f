#include "common/source/formats/safetensors/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/source/safetensors/file.h"
#include "common/source/formats/safetensors/folder.h"
#include "common/source/formats/safetensors/locate.h"
#include "common/source/formats/safetensors/merge.h"

namespace ckptd {
namespace {

// Why a file of the source could not be read.
absl::Status InContext(const absl::Status& status, const LocatedFiles& located) {
  if (!located.index.has_value() || status.code() != absl::StatusCode::kNotFound) return status;
  return WithContext(status, fmt::format("reading a file that index {} names (finish the download, "
                                         "or correct the index)",
                                         located.index_path));
}

absl::StatusOr<SafetensorsFile> ReadFile(const Storage& storage, const LocatedFiles& located,
                                         const std::string& name) {
  absl::StatusOr<SafetensorsFile> file =
      ReadSafetensorsFile(storage, located.folder + "/" + name);
  if (!file.ok()) return InContext(file.status(), located);
  return file;
}

// The length of the JSON, then the JSON, before which there may be white space.
bool BeginsAsHeader(const Storage& storage, const std::string& path) {
  constexpr uint64_t kLookedAt = 512;
  const auto object = storage.Open(path);
  if (!object.ok()) return false;
  const uint64_t bytes = (*object)->size() - (*object)->begin();
  std::string start(static_cast<size_t>(std::min(bytes, kLookedAt)), '\0');
  if (!(*object)->ReadAt((*object)->begin(), std::as_writable_bytes(std::span(start))).ok()) {
    return false;
  }
  const size_t json = start.find_first_not_of(" \t\r\n", kHeaderLengthBytes);
  return json != std::string::npos && start[json] == '{';
}

}  // namespace

bool SafetensorsFormat::Recognise(const Storage& storage, const Listing& listing) const {
  // Other parts of a training lie beside the model in other formats.
  if (!listing.part.empty() && listing.part != "model") return false;
  if (listing.is_folder) return IsOfSafetensors(storage, listing);
  // An index may have any name; one that names files of torch is theirs.
  return listing.source.ends_with(".safetensors") || listing.source.ends_with(".json") ||
         BeginsAsHeader(storage, listing.source);
}

absl::Status SafetensorsFormat::Check(const Storage& storage, const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const LocatedFiles located, LocateFiles(storage, listing));
  if (located.index.has_value() || located.names.size() != 1) return absl::OkStatus();
  return ReadFile(storage, located, located.names[0]).status();
}

absl::StatusOr<OpenedCheckpoint> SafetensorsFormat::ReadIndex(const Storage& storage,
                                                              const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const LocatedFiles located, LocateFiles(storage, listing));
  IndexMerger merger(located);
  for (const std::string& name : located.names) {
    CKPTD_ASSIGN_OR_RETURN(SafetensorsFile file, ReadFile(storage, located, name));
    CKPTD_RETURN_IF_ERROR(merger.Add(std::move(file)));
  }
  OpenedCheckpoint out;
  CKPTD_ASSIGN_OR_RETURN(out.index, merger.Finish());
  // The index decides which bytes a name means: it is part of what was loaded.
  if (located.index_file.has_value()) out.index.files.push_back(*located.index_file);
  out.remarks = located.remarks;
  out.remarks.insert(out.remarks.end(), merger.remarks().begin(), merger.remarks().end());
  return out;
}

absl::StatusOr<bool> SafetensorsFormat::StillMeans(const Storage& storage, const Listing& listing,
                                                   const std::vector<SourceFile>& files) const {
  return FindsStill(storage, listing, files);
}

}  // namespace ckptd
