#include "common/source/formats/dcp/format.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/source/formats/dcp/beside.h"
#include "common/source/formats/dcp/builder.h"
#include "common/source/formats/dcp/metadata.h"
#include "common/source/formats/dcp/part.h"
#include "common/source/formats/dcp/place.h"
#include "common/source/pickle/pickle.h"
#include "common/source/torch/file.h"
#include "common/source/torch/flatten.h"
#include "common/source/torch/text_of.h"

namespace ckptd {
namespace {

// A .metadata, the file that it was, and what of it is meant.
struct Found {
  dcp::Place place;
  SourceFile file;
  dcp::Metadata metadata;
  dcp::Part part;
};

// An error about .metadata, or about what it says.
absl::Status InContext(const absl::Status& status, const std::string& path) {
  if (status.ok() || FactsOf(status).contains("file")) return status;
  return WithFact(WithContext(status, "reading " + path), "file", path);
}

absl::StatusOr<dcp::Metadata> ReadMetadata(const Storage& storage, const std::string& path,
                                           SourceFile& file) {
  CKPTD_ASSIGN_OR_RETURN(pickle::Parsed parsed,
                         torch::ReadPickle(storage, path, file));
  return dcp::Metadata::Make(std::move(parsed.document));
}

absl::StatusOr<Found> Find(const Storage& storage, const Listing& listing) {
  CKPTD_ASSIGN_OR_RETURN(dcp::Place place, dcp::FindPlace(storage, listing));
  const std::string path = place.folder.source + "/" + dcp::kMetadata;
  SourceFile file;
  absl::StatusOr<dcp::Metadata> metadata = ReadMetadata(storage, path, file);
  if (!metadata.ok()) return InContext(metadata.status(), path);
  absl::StatusOr<dcp::Part> part = dcp::ChoosePart(place.folder, metadata->stored());
  if (!part.ok()) return InContext(part.status(), path);
  return Found{std::move(place), std::move(file), *std::move(metadata), *std::move(part)};
}

// The path as a JSON list of texts and numbers; nullopt: it has one element, which is the key, or
// is longer than any value that clients are told.
std::optional<std::string> PathJson(const pickle::Value& path) {
  if (path.items().size() < 2) return std::nullopt;
  std::string out = "[";
  for (const pickle::Value* const element : path.items()) {
    const auto json = torch::PlainJson(*element, torch::kMaxValueBytes);
    if (!json.has_value()) return std::nullopt;
    out += (out.size() == 1 ? "" : ", ") + *json;
    if (out.size() >= torch::kMaxValueBytes) return std::nullopt;
  }
  return out + "]";
}

// Adds to the values where each entry was before its state dict was flattened. Keys alone do not
// say that, because parts of a path have dots themselves. It is for who rebuilds the state dict,
// and so asks for everything.
void AddPaths(const Found& found, CheckpointIndex& index) {
  if (found.place.folder.part != "all") return;
  for (const dcp::Chosen& chosen : found.part.entries) {
    if (index.values.size() + index.opaque.size() >= kMaxSourceValues) return;
    if (chosen.stored->path == nullptr) continue;
    std::optional<std::string> json = PathJson(*chosen.stored->path);
    if (json.has_value()) {
      index.values.emplace(".metadata.planner_data." + chosen.name, *std::move(json));
    }
  }
}

}  // namespace

bool DcpFormat::Recognise(const Storage& storage, const Listing& listing) const {
  return dcp::IsDcp(storage, listing);
}

absl::Status DcpFormat::Check(const Storage& storage, const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const Found found, Find(storage, listing));
  dcp::Builder builder(storage, found.place.folder, found.metadata);
  return InContext(builder.Add(found.part), found.file.path);
}

absl::StatusOr<OpenedCheckpoint> DcpFormat::ReadIndex(const Storage& storage,
                                                      const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(Found found, Find(storage, listing));
  dcp::Builder builder(storage, found.place.folder, found.metadata);
  if (const absl::Status added = builder.Add(found.part); !added.ok()) {
    return InContext(added, found.file.path);
  }
  absl::StatusOr<CheckpointIndex> index = builder.Build();
  if (!index.ok()) return InContext(index.status(), found.file.path);
  OpenedCheckpoint out;
  out.index = *std::move(index);
  out.index.format = name();
  if (!found.metadata.version().empty()) {
    out.index.metadata.emplace("dcp_version", found.metadata.version());
  }
  if (!found.place.remark.empty()) out.remarks.push_back(std::move(found.place.remark));
  if (!found.part.remark.empty()) out.remarks.push_back(std::move(found.part.remark));
  CKPTD_RETURN_IF_ERROR(dcp::AddFilesBeside(storage, found.place.folder, out));
  AddPaths(found, out.index);
  out.index.files.push_back(std::move(found.file));
  CKPTD_RETURN_IF_ERROR(FinishTensors(out.index));
  return out;
}

absl::StatusOr<bool> DcpFormat::StillMeans(const Storage& storage, const Listing& listing,
                                           const std::vector<SourceFile>& files) const {
  CKPTD_ASSIGN_OR_RETURN(const dcp::Place place, dcp::FindPlace(storage, listing));
  return !files.empty() && files.back().path == place.folder.source + "/" + dcp::kMetadata;
}

}  // namespace ckptd
