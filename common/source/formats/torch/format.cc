#include "common/source/formats/torch/format.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/source/formats/torch/choose.h"
#include "common/source/formats/torch/locate.h"
#include "common/source/formats/torch/merge.h"
#include "common/source/formats/torch/parts.h"
#include "common/source/torch/file.h"
#include "common/source/weight_map/index_json.h"

namespace ckptd {
namespace {

constexpr std::string_view kIndex = ".bin.index.json";

// By its name, or by the files that it names: accelerate takes indices of any name, and those of
// variants have theirs inside ("pytorch_model.bin.index.fp16.json").
bool IsIndex(const Storage& storage, const std::string& path) {
  if (path.ends_with(kIndex)) return true;
  if (!path.ends_with(".json") || path.ends_with(".safetensors.index.json")) return false;
  const auto read = ReadText(storage, path, kMaxIndexJsonBytes);
  return read.ok() && ParseIndexJson(read->text, ".bin").ok();
}

// The options that say what to take of a file of the source.
torch::PartOptions OptionsOf(const Listing& listing, const LocatedFiles& located,
                             const std::string& name) {
  torch::PartOptions options;
  options.strips_wrappers = !listing.is_folder && !located.index.has_value();
  options.keeps_types = listing.part == "extra";
  // A file of a folder is one part already.
  const bool is_other = !listing.part.empty() && listing.part != "model";
  if (!listing.is_folder) {
    options.part = listing.part;
  } else if (is_other) {
    options.part = "all";
    options.may_lack_tensors = true;
    const bool is_alone = listing.part == "optimizer" && located.names.size() == 1;
    if (!is_alone) options.prefix = torch::StemOf(name);
  }
  return options;
}

// Files of a folder's part that is not the model are in the group of that part.
void Regroup(const Listing& listing, torch::TakenPart& part) {
  if (!listing.is_folder || listing.part.empty() || listing.part == "model") return;
  for (torch::PartTensor& tensor : part.tensors) {
    tensor.group = listing.part;
    tensor.named.kind =
        listing.part == "optimizer" ? EntryKind::kOptimizer : EntryKind::kBuffer;
  }
}

}  // namespace

bool TorchFormat::Recognise(const Storage& storage, const Listing& listing) const {
  if (listing.is_folder) return torch::HasTorchFiles(listing);
  if (IsIndex(storage, listing.source)) return true;
  const auto object = storage.Open(listing.source);
  return object.ok() && torch::IsTorchFile(**object);
}

absl::Status TorchFormat::Check(const Storage& storage, const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const LocatedFiles located, torch::LocateFiles(storage, listing));
  if (located.index.has_value() || located.names.size() != 1) return absl::OkStatus();
  return torch::ReadFile(storage, located.folder + "/" + located.names.front()).status();
}

absl::StatusOr<OpenedCheckpoint> TorchFormat::ReadIndex(const Storage& storage,
                                                        const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const LocatedFiles located, torch::LocateFiles(storage, listing));
  torch::IndexMerger merger(located);
  for (const std::string& name : located.names) {
    CKPTD_ASSIGN_OR_RETURN(const torch::File file,
                           torch::ReadFile(storage, located.folder + "/" + name));
    CKPTD_ASSIGN_OR_RETURN(torch::TakenPart part,
                           torch::TakePart(file, OptionsOf(listing, located, name)));
    Regroup(listing, part);
    CKPTD_RETURN_IF_ERROR(merger.Add(file, std::move(part)));
  }
  OpenedCheckpoint out;
  CKPTD_ASSIGN_OR_RETURN(out.index, merger.Finish());
  out.index.format = name();
  out.remarks = located.remarks;
  out.remarks.insert(out.remarks.end(), merger.remarks().begin(), merger.remarks().end());
  return out;
}

absl::StatusOr<bool> TorchFormat::StillMeans(const Storage& /*storage*/, const Listing& listing,
                                             const std::vector<SourceFile>& files) const {
  if (!listing.is_folder) return true;
  CKPTD_ASSIGN_OR_RETURN(const torch::FilesChoice choice, torch::ChooseFiles(listing));
  const std::string folder = listing.source + "/";
  if (!choice.index.empty()) return !files.empty() && files.back().path == folder + choice.index;
  return std::equal(files.begin(), files.end(), choice.names.begin(), choice.names.end(),
                    [&](const auto& file, const auto& name) { return file.path == folder + name; });
}

}  // namespace ckptd
