// Files of torch 1.6 and newer: a zip with a pickle and a record for each storage.
#include <fmt/format.h>

#include <charconv>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/digest.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/torch/read_file.h"
#include "common/source/zip/archive.h"

namespace ckptd::torch {
namespace {

constexpr std::string_view kPickle = "/data.pkl";
constexpr size_t kSmallRecord = 64;
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

}  // namespace

absl::StatusOr<pickle::Parsed> ParsePickle(const zip::ObjectPart& part,
                                           std::span<const std::byte> bytes,
                                           const pickle::Limits& limits) {
  absl::StatusOr<pickle::Parsed> parsed = pickle::Parse(bytes, limits);
  if (parsed.ok()) return parsed;
  const std::string& path = part.object->path();
  return WithFact(WithContext(parsed.status(), "reading " + path), "file", path);
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
  File out;
  out.file = part.object->identity();
  out.form = "zip";
  CKPTD_ASSIGN_OR_RETURN(out.big_endian, IsBigEndian(archive, root));
  const zip::Record& record = *archive.Find(root + std::string(kPickle));
  const pickle::Limits limits;
  CKPTD_ASSIGN_OR_RETURN(const std::string bytes, archive.Read(record, limits.pickle_bytes));
  out.file.header_hash = Xxh3(bytes);
  CKPTD_ASSIGN_OR_RETURN(pickle::Parsed parsed,
                         ParsePickle(part, std::as_bytes(std::span(bytes)), limits));
  out.document = std::move(parsed.document);
  const std::string data = root + "/data/";
  for (const zip::Record& storage : archive.records()) {
    if (!storage.name.starts_with(data)) continue;
    out.storages[storage.name.substr(data.size())] = {
        storage.offset, storage.bytes, storage.method == zip::Method::kDeflated, storage.crc32};
  }
  return out;
}

}  // namespace ckptd::torch
