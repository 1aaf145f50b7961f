#include "common/source/safetensors/file.h"

#include <algorithm>
#include <memory>
#include <span>

#include "common/base/digest.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

// One read fetches the length and most headers whole.
constexpr uint64_t kFirstReadBytes = 64 * 1024;

// The JSON of the header that stands at `begin`.
absl::StatusOr<std::string> ReadHeaderBytes(const ReadableObject& object, uint64_t begin,
                                            uint64_t object_bytes) {
  std::string bytes(std::min(object_bytes, kFirstReadBytes), '\0');
  CKPTD_RETURN_IF_ERROR(
      object.ReadAt(begin, std::as_writable_bytes(std::span(bytes))));
  CKPTD_ASSIGN_OR_RETURN(const uint64_t length,
                         ParseHeaderLength(std::as_bytes(std::span(bytes)), object_bytes));
  const size_t have = bytes.size();
  bytes.resize(kHeaderLengthBytes + length);
  if (bytes.size() > have) {
    const std::span<char> rest = std::span(bytes).subspan(have);
    CKPTD_RETURN_IF_ERROR(
        object.ReadAt(begin + have, std::as_writable_bytes(rest)));
  }
  bytes.erase(0, kHeaderLengthBytes);
  return bytes;
}

absl::StatusOr<SafetensorsFile> ReadFrom(const ReadableObject& object, uint64_t begin) {
  SafetensorsFile out;
  out.file = object.identity();
  const uint64_t bytes = object.size() - std::min(begin, object.size());
  CKPTD_ASSIGN_OR_RETURN(const std::string json, ReadHeaderBytes(object, begin, bytes));
  out.file.header_hash = Xxh3(json);
  out.data_start = begin + kHeaderLengthBytes + json.size();
  CKPTD_ASSIGN_OR_RETURN(out.header, ParseSafetensorsHeader(json, bytes));
  if (object.data_begin().value_or(out.data_start) != out.data_start) {
    return HeaderError("MetadataIncompleteBuffer",
                       "the memory that it offers is not as long as its tensors");
  }
  return out;
}

}  // namespace

absl::StatusOr<SafetensorsFile> ReadSafetensorsFile(const Storage& storage,
                                                    const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<const ReadableObject> object, storage.Open(path));
  return ReadSafetensorsObject(*object, object->begin());
}

absl::StatusOr<SafetensorsFile> ReadSafetensorsObject(const ReadableObject& object,
                                                      uint64_t begin) {
  absl::StatusOr<SafetensorsFile> out = ReadFrom(object, begin);
  if (out.ok()) return out;
  absl::Status status = out.status();
  if (FactsOf(status).count("error") != 0) {
    status = WithContext(status, "reading the header of " + object.path());
  }
  return WithFact(status, "file", object.path());
}

}  // namespace ckptd
