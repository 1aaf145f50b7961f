#include "common/source/formats/gguf/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/gguf/header.h"
#include "common/source/text.h"
#include "common/source/weight_map/series.h"

namespace ckptd {
namespace {

using Names = std::vector<std::string>;

constexpr char kExtension[] = ".gguf";

bool IsOfGguf(const std::string& name) {
  return name.ends_with(kExtension) && !name.starts_with('.');
}

// The files of a folder that count: one, or one series.
absl::StatusOr<Names> ChooseFiles(const Listing& listing) {
  Names names;
  std::copy_if(listing.names.begin(), listing.names.end(), std::back_inserter(names), IsOfGguf);
  const size_t in_series = ChooseSeries(names, kExtension, "").size();
  if (names.empty() || (names.size() > 1 && in_series != names.size())) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("opening {}: it holds {} models in GGUF files ({}); name the file "
                                 "to load",
                                 listing.source, names.empty() ? "no" : "several", Listed(names)),
                     {{"file", listing.source}});
  }
  CKPTD_RETURN_IF_ERROR(CheckSeriesComplete(listing.source, names, kExtension));
  return names;
}

// Absolute, in the order of their names.
absl::StatusOr<Names> PathsOf(const Listing& listing) {
  if (!listing.is_folder) return Names{listing.source};
  CKPTD_ASSIGN_OR_RETURN(Names names, ChooseFiles(listing));
  for (std::string& name : names) name = listing.source + "/" + name;
  return names;
}

absl::StatusOr<gguf::Header> ReadHeaderOf(const Storage& storage, const std::string& path,
                                          SourceFile& file) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadableObject> object, storage.Open(path));
  absl::StatusOr<gguf::Header> header = gguf::ReadHeader(*object);
  if (!header.ok()) {
    return WithFact(WithContext(header.status(), "reading " + path), "file", path);
  }
  file = object->identity();
  file.header_hash = header->hash;
  return header;
}

class Assembler {
 public:
  absl::Status Add(SourceFile file, gguf::Header header);
  absl::StatusOr<OpenedCheckpoint> Finish();

 private:
  absl::Status AddTensor(gguf::TensorInfo& info, const gguf::Header& header);
  absl::Status AddPlain(gguf::TensorInfo& info, Dtype dtype, const gguf::Header& header);

  CheckpointIndex index_;
  Names quantised_;  // with their types
};

absl::Status Assembler::Add(SourceFile file, gguf::Header header) {
  index_.files.push_back(std::move(file));
  if (header.tensors.size() + index_.tensors.size() + quantised_.size() > gguf::kMaxTensors) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     fmt::format("reading {}: with this file the model has more than {} tensors; "
                                 "name single files",
                                 index_.files.back().path, gguf::kMaxTensors),
                     {{"file", index_.files.back().path}});
  }
  for (gguf::TensorInfo& info : header.tensors) CKPTD_RETURN_IF_ERROR(AddTensor(info, header));
  index_.values.merge(header.values);
  return absl::OkStatus();
}

absl::Status Assembler::AddTensor(gguf::TensorInfo& info, const gguf::Header& header) {
  const std::optional<Dtype> dtype = gguf::PlainDtype(info.type);
  if (dtype.has_value()) return AddPlain(info, *dtype, header);
  const std::string type = gguf::NameOfType(info.type);
  quantised_.push_back(fmt::format("{} ({})", info.name, type));
  index_.opaque.insert_or_assign(std::move(info.name), "ggml." + type);
  return absl::OkStatus();
}

absl::Status Assembler::AddPlain(gguf::TensorInfo& info, Dtype dtype, const gguf::Header& header) {
  TensorEntry tensor;
  tensor.name = std::move(info.name);
  tensor.dtype = dtype;
  tensor.big_endian = header.big_endian;
  Piece& piece = tensor.pieces.emplace_back();
  piece.file = static_cast<uint32_t>(index_.files.size() - 1);
  piece.box = {Shape(info.shape.size(), 0), info.shape};
  const auto elements = CheckedElements(info.shape);
  const auto bytes = elements.has_value() ? CheckedBytes(*elements, BitsOf(dtype)) : std::nullopt;
  const auto offset = CheckedAdd(header.data_start, info.offset);
  if (!bytes.has_value() || !offset.has_value()) {
    const std::string& path = index_.files.back().path;
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                     fmt::format("reading {}: tensor {} has a size or a place beyond 64 bits; copy "
                                 "or download the file again",
                                 path, Quoted(tensor.name)),
                     {{"file", path}, {"tensor", tensor.name}});
  }
  piece.offset = *offset;
  piece.bytes = *bytes;
  tensor.shape = std::move(info.shape);
  index_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<OpenedCheckpoint> Assembler::Finish() {
  const std::string& path = index_.files.front().path;
  if (index_.tensors.empty() && !quantised_.empty()) {
    return MakeError(absl::StatusCode::kUnimplemented, reason::kSourceUnsupported,
                     fmt::format("reading {}: all of its tensors are quantised: {}; load the "
                                 "model that it was made from",
                                 path, Listed(quantised_)),
                     {{"file", path}});
  }
  CKPTD_RETURN_IF_ERROR(FinishTensors(index_));
  OpenedCheckpoint out;
  if (!quantised_.empty()) {
    out.remarks.push_back(fmt::format("{} of {} tensors are quantised and not read: {}",
                                      quantised_.size(), quantised_.size() + index_.tensors.size(),
                                      Listed(quantised_)));
  }
  out.index = std::move(index_);
  return out;
}

}  // namespace

bool GgufFormat::Recognise(const Storage& storage, const Listing& listing) const {
  if (listing.is_folder) {
    return std::any_of(listing.names.begin(), listing.names.end(), IsOfGguf);
  }
  const auto object = storage.Open(listing.source);
  return object.ok() && gguf::IsGguf(**object);
}

absl::Status GgufFormat::Check(const Storage& storage, const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const Names paths, PathsOf(listing));
  SourceFile file;
  return ReadHeaderOf(storage, paths.front(), file).status();
}

absl::StatusOr<OpenedCheckpoint> GgufFormat::ReadIndex(const Storage& storage,
                                                       const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(const Names paths, PathsOf(listing));
  Assembler assembler;
  for (const std::string& path : paths) {
    SourceFile file;
    CKPTD_ASSIGN_OR_RETURN(gguf::Header header, ReadHeaderOf(storage, path, file));
    CKPTD_RETURN_IF_ERROR(assembler.Add(std::move(file), std::move(header)));
  }
  CKPTD_ASSIGN_OR_RETURN(OpenedCheckpoint out, assembler.Finish());
  return out;
}

absl::StatusOr<bool> GgufFormat::StillMeans(const Storage& /*storage*/, const Listing& listing,
                                            const std::vector<SourceFile>& files) const {
  CKPTD_ASSIGN_OR_RETURN(const Names paths, PathsOf(listing));
  return std::equal(files.begin(), files.end(), paths.begin(), paths.end(),
                    [](const SourceFile& file, const std::string& path) {
                      return file.path == path;
                    });
}

}  // namespace ckptd
