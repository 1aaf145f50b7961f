// Files of torch 1.6 and newer: a zip with a pickle and a record for each storage.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/digest.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/torch/dtypes.h"
#include "common/source/torch/read_file.h"
#include "common/source/torch/storage_id.h"
#include "common/source/zip/archive.h"

namespace ckptd::torch {
namespace {

constexpr std::string_view kPickle = "/data.pkl";
constexpr size_t kSmallRecord = 64;
// Pickles shrink to a tenth or so: a packed byte pays for some plain ones.
constexpr uint64_t kPackedBytesCount = 4;
// As torch counts the versions of its files (kMaxSupportedFileFormatVersion).
constexpr int kNewestVersion = 10;

// The name in front of "/data.pkl": the one folder that all records of torch lie in.
absl::StatusOr<std::string> RootOf(const zip::Archive& archive) {
  std::string root;
  size_t found = 0;
  for (const zip::Record& record : archive.records()) {
    const std::string_view name = record.name;
    if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
    root = name.substr(0, name.size() - kPickle.size());
    ++found;
  }
  if (found == 1) return root;
  const zip::ObjectPart& part = archive.part();
  if (found > 1) return part.Invalid("it holds several data.pkl; save it again");
  if (archive.records().empty()) return part.Invalid("it is an empty zip file; save it again");
  const std::string first = Quoted(Escape(archive.records().front().name));
  return part.Unsupported(fmt::format("it is a zip file of something else than torch.save: it "
                                      "holds {} and no data.pkl; name the checkpoint itself",
                                      first));
}

// A short record as text; empty: there is none.
absl::StatusOr<std::string> ReadSmall(const zip::Archive& archive, const std::string& name) {
  const zip::Record* const record = archive.Find(name);
  if (record == nullptr) return "";
  return archive.Read(*record, kSmallRecord);
}

absl::Status CheckVersion(const zip::Archive& archive, const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadSmall(archive, root + "/version"));
  int version = 0;
  std::from_chars(text.data(), text.data() + text.size(), version);
  if (version <= kNewestVersion) return absl::OkStatus();
  return archive.part().Unsupported(
      fmt::format("its file format is of version {}, at most {} is read; save it again with an "
                  "older torch",
                  version, kNewestVersion));
}

absl::StatusOr<bool> IsBigEndian(const zip::Archive& archive, const std::string& root) {
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadSmall(archive, root + "/byteorder"));
  if (text.empty() || text == "little") return false;
  if (text == "big") return true;
  return archive.part().Invalid(fmt::format("its byte order is {}, which is none; save it again",
                                            Quoted(Escape(text))));
}

// An error of a pickle.
absl::Status InContext(const zip::ObjectPart& part, const absl::Status& status) {
  if (status.ok()) return status;
  const std::string& path = part.object->path();
  return WithFact(WithContext(status, "reading " + path), "file", path);
}

}  // namespace

absl::StatusOr<pickle::Parsed> ParsePickle(const zip::ObjectPart& part,
                                           std::span<const std::byte> bytes,
                                           const pickle::Limits& limits) {
  absl::StatusOr<pickle::Parsed> parsed = pickle::Parse(bytes, limits);
  if (parsed.ok()) return parsed;
  return InContext(part, parsed.status());
}

namespace {

// torch looks records up without regard to case, and takes whichever it comes upon.
absl::Status CheckCase(const zip::Archive& archive) {
  std::vector<uint64_t> hashes;
  hashes.reserve(archive.records().size());
  std::string name;
  for (const zip::Record& record : archive.records()) {
    name = record.name;
    for (char& c : name) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    hashes.push_back(Xxh3(name));
  }
  std::sort(hashes.begin(), hashes.end());
  if (std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end()) return absl::OkStatus();
  return archive.part().Invalid("it has records whose names differ in case alone; save it again");
}

// A long pickle must begin as one before all of it is read: files can be long and take no room.
absl::Status CheckBegin(const zip::ObjectPart& part, const zip::Record& record) {
  if (record.method != zip::Method::kStored || record.bytes <= pickle::kLongPickle) {
    return absl::OkStatus();
  }
  std::vector<std::byte> begin(pickle::kLongPickle);
  CKPTD_RETURN_IF_ERROR(part.ReadAt(record.offset - part.begin, begin));
  return InContext(part, pickle::CheckBegin(begin));
}

}  // namespace

absl::Status CheckStorages(const zip::ObjectPart& part, const pickle::Document& document) {
  std::unordered_map<std::string_view, std::string_view> symbols;
  for (const pickle::Value* const value : document.persistent) {
    const std::optional<StorageId> id = StorageIdOf(*value);
    if (!id.has_value()) continue;
    const std::string_view first = symbols.try_emplace(id->key, id->symbol).first->second;
    if (first == id->symbol || DtypeOfStorage(first) == DtypeOfStorage(id->symbol)) continue;
    return part.Invalid(fmt::format("it has tensors of different dtypes in storage {}, and torch "
                                    "gives all of them the first one's; save it again",
                                    Quoted(Escape(id->key))));
  }
  return absl::OkStatus();
}

absl::StatusOr<File> ReadZip(const zip::ObjectPart& part) {
  CKPTD_ASSIGN_OR_RETURN(const zip::Archive archive,
                         zip::Archive::Open(part.object, part.begin, part.bytes));
  CKPTD_ASSIGN_OR_RETURN(const std::string root, RootOf(archive));
  if (archive.Find(root + "/constants.pkl") != nullptr) {
    return part.Unsupported(
        "it is a TorchScript program, whose weights are not read; save the state_dict() of what "
        "torch.jit.load gives");
  }
  CKPTD_RETURN_IF_ERROR(CheckVersion(archive, root));
  CKPTD_RETURN_IF_ERROR(CheckCase(archive));
  File out;
  out.file = part.object->identity();
  out.form = "zip";
  CKPTD_ASSIGN_OR_RETURN(out.big_endian, IsBigEndian(archive, root));
  const zip::Record& record = *archive.Find(root + std::string(kPickle));
  CKPTD_RETURN_IF_ERROR(CheckBegin(part, record));
  pickle::Limits limits;
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, archive.Read(record, limits.pickle_bytes));
  out.pickle_bytes = std::min<uint64_t>(record.plain_bytes, kPackedBytesCount * record.bytes);
  limits.stored_bytes = out.pickle_bytes;
  out.file.header_hash = Xxh3(bytes);
  CKPTD_ASSIGN_OR_RETURN(pickle::Parsed parsed,
                         ParsePickle(part, std::as_bytes(std::span(bytes)), limits));
  out.document = std::move(parsed.document);
  CKPTD_RETURN_IF_ERROR(CheckStorages(part, out.document));
  const std::string data = root + "/data/";
  for (const zip::Record& storage : archive.records()) {
    if (!storage.name.starts_with(data)) continue;
    out.storages[storage.name.substr(data.size())] = {
        storage.offset, storage.bytes, storage.method == zip::Method::kDeflated, storage.crc32};
  }
  return out;
}

}  // namespace ckptd::torch
