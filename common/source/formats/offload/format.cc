#include "common/source/formats/offload/format.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/formats/offload/index_json.h"
#include "common/source/text.h"

namespace ckptd {
namespace {

constexpr char kIndex[] = "index.json";
constexpr char kExtension[] = ".dat";

// The folder of a source, where the source is one or names the index in one.
std::string FolderOf(const Listing& listing) {
  if (listing.is_folder) return listing.source;
  return listing.source.substr(0, listing.source.rfind('/'));
}

bool IsIndex(const std::string& path) { return path.ends_with(std::string("/") + kIndex); }

struct ReadEntries {
  SourceFile file;
  std::vector<offload::Entry> entries;
};

absl::StatusOr<ReadEntries> ReadEntriesOf(const Storage& storage, const Listing& listing) {
  const std::string path = FolderOf(listing) + "/" + kIndex;
  absl::StatusOr<TextObject> read = ReadText(storage, path, offload::kMaxIndexBytes);
  if (!read.ok()) return WithFact(read.status(), "file", path);
  ReadEntries out;
  out.file = std::move(read->identity);
  absl::StatusOr<std::vector<offload::Entry>> entries = offload::ParseIndex(read->text);
  if (!entries.ok()) {
    return WithFact(WithContext(entries.status(), "reading index " + path), "file", path);
  }
  out.entries = *std::move(entries);
  return out;
}

absl::Status Invalid(const std::string& path, const std::string& tensor, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("reading {}: tensor {} {}; offload the weights again", path,
                               Quoted(tensor), why),
                   {{"file", path}, {"tensor", tensor}});
}

// Makes an index of the entries, and finds out about their files.
class Assembler {
 public:
  Assembler(const Storage& storage, std::string folder, ReadEntries read)
      : storage_(storage), folder_(std::move(folder)), read_(std::move(read)) {}

  absl::StatusOr<CheckpointIndex> Assemble();

 private:
  absl::Status FindFiles();
  absl::Status AddTensor(const offload::Entry& entry);

  const Storage& storage_;
  const std::string folder_;
  ReadEntries read_;
  CheckpointIndex index_;
  std::map<std::string, uint32_t> numbers_;  // of the files, by the tensor that they hold
};

absl::StatusOr<CheckpointIndex> Assembler::Assemble() {
  CKPTD_RETURN_IF_ERROR(FindFiles());
  index_.files.push_back(read_.file);
  for (const offload::Entry& entry : read_.entries) CKPTD_RETURN_IF_ERROR(AddTensor(entry));
  CKPTD_RETURN_IF_ERROR(FinishTensors(index_));
  return std::move(index_);
}

absl::Status Assembler::FindFiles() {
  std::vector<std::pair<std::string, std::string>> files;  // name and tensor
  for (const offload::Entry& entry : read_.entries) {
    const bool is_empty = std::count(entry.shape.begin(), entry.shape.end(), 0) > 0;
    if (!is_empty) files.emplace_back(entry.name + kExtension, entry.name);
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : files) {
    const auto found = storage_.Stat(folder_ + "/" + name);
    if (found.status().code() == absl::StatusCode::kNotFound) {
      missing.push_back(name);
      continue;
    }
    CKPTD_RETURN_IF_ERROR(found.status());
    if (found->is_folder) return Invalid(found->identity.path, tensor, "is a folder");
    numbers_[tensor] = static_cast<uint32_t>(index_.files.size());
    index_.files.push_back(found->identity);
  }
  if (missing.empty()) return absl::OkStatus();
  return FilesMissing(folder_, missing,
                      "its index.json names them: copy them there, or offload the weights again");
}

absl::Status Assembler::AddTensor(const offload::Entry& entry) {
  // The bytes of an empty tensor are none of the index.
  const auto number = numbers_.find(entry.name);
  const bool is_empty = number == numbers_.end();
  TensorEntry tensor;
  tensor.name = entry.name;
  tensor.dtype = entry.dtype;
  tensor.shape = entry.shape;
  Piece& piece = tensor.pieces.emplace_back();
  piece.file = is_empty ? static_cast<uint32_t>(index_.files.size() - 1) : number->second;
  piece.box.offsets.assign(entry.shape.size(), 0);
  piece.box.extents = entry.shape;
  const SourceFile& file = index_.files[piece.file];
  const std::optional<uint64_t> elements = CheckedElements(entry.shape);
  const auto bytes = elements.has_value() ? CheckedBytes(*elements, BitsOf(entry.dtype))
                                          : std::nullopt;
  if (!bytes.has_value()) return Invalid(file.path, entry.name, "has a size beyond 64 bits");
  if (!is_empty && *bytes != file.bytes) {
    return Invalid(file.path, entry.name,
                   fmt::format("needs {} bytes, its file has {}", *bytes, file.bytes));
  }
  piece.bytes = *bytes;
  index_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

}  // namespace

bool OffloadFormat::Recognise(const Storage& storage, const Listing& listing) const {
  if (!listing.is_folder) {
    return IsIndex(listing.source) && ReadEntriesOf(storage, listing).ok();
  }
  const auto& names = listing.names;
  return std::binary_search(names.begin(), names.end(), kIndex) &&
         std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name.ends_with(kExtension); });
}

absl::Status OffloadFormat::Check(const Storage& storage, const Listing& listing) const {
  return ReadEntriesOf(storage, listing).status();
}

absl::StatusOr<OpenedCheckpoint> OffloadFormat::ReadIndex(const Storage& storage,
                                                          const Listing& listing) const {
  CKPTD_ASSIGN_OR_RETURN(ReadEntries read, ReadEntriesOf(storage, listing));
  OpenedCheckpoint out;
  Assembler assembler(storage, FolderOf(listing), std::move(read));
  CKPTD_ASSIGN_OR_RETURN(out.index, assembler.Assemble());
  return out;
}

absl::StatusOr<bool> OffloadFormat::StillMeans(const Storage& /*storage*/, const Listing& listing,
                                               const std::vector<SourceFile>& files) const {
  return !files.empty() && files.back().path == FolderOf(listing) + "/" + kIndex;
}

}  // namespace ckptd
