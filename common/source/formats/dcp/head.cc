#include "common/source/formats/dcp/head.h"

#include <string>

#include "common/source/zip/object_part.h"

namespace ckptd::dcp {
namespace {

using zip::LittleAt;

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDescriptor = 0x08074b50;
constexpr uint32_t kDirectory = 0x02014b50;
constexpr size_t kLocalHeaderBytes = 30;
constexpr uint16_t kEncrypted = 1;
// The sizes stand behind the data.
constexpr uint16_t kHasDescriptor = 8;
// data.pkl, two of its version, byteorder, data/0, version, serialization_id.
constexpr int kMostRecords = 16;

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Has(std::span<const std::byte> bytes, size_t at, uint32_t signature) {
  return at <= bytes.size() && bytes.size() - at >= sizeof(signature) &&
         LittleAt<uint32_t>(bytes, at) == signature;
}

struct Record {
  std::string_view name;
  bool has_descriptor = false;
  uint32_t bytes = 0;   // of its data, where it has no descriptor
  size_t data = 0;      // where they begin
};

std::optional<Record> RecordAt(std::span<const std::byte> bytes, size_t at) {
  if (!Has(bytes, at, kLocalHeader) || bytes.size() - at < kLocalHeaderBytes) return std::nullopt;
  const auto flags = LittleAt<uint16_t>(bytes, at + 6);
  const auto method = LittleAt<uint16_t>(bytes, at + 8);
  const auto name_bytes = LittleAt<uint16_t>(bytes, at + 26);
  const auto extra_bytes = LittleAt<uint16_t>(bytes, at + 28);
  Record out;
  out.has_descriptor = (flags & kHasDescriptor) != 0;
  out.bytes = LittleAt<uint32_t>(bytes, at + 18);
  out.data = at + kLocalHeaderBytes + name_bytes + extra_bytes;
  const bool fits = out.data <= bytes.size();
  if (!fits || method != 0 || (flags & kEncrypted) != 0) return std::nullopt;
  out.name = TextOf(bytes).substr(at + kLocalHeaderBytes, name_bytes);
  return out;
}

// Where the next record begins, or the directory, behind one whose data end so; `end` is set to
// where they do. `last` is the last byte of the data, if that is known.
std::optional<size_t> NextRecord(std::span<const std::byte> bytes, const Record& record,
                                 std::string_view last, size_t& end) {
  if (!record.has_descriptor) {
    if (record.bytes > bytes.size() - record.data) return std::nullopt;
    end = record.data + record.bytes;
    return end;
  }
  constexpr std::string_view kSignature("PK\x07\x08");
  const std::string mark = std::string(last) + std::string(kSignature);
  const size_t found = TextOf(bytes).find(mark, record.data);
  if (found == std::string_view::npos) return std::nullopt;
  end = found + last.size();
  // Sizes of 32 bits or of 64 bits.
  for (const size_t descriptor_bytes : {16, 24}) {
    const size_t next = end + descriptor_bytes;
    if (Has(bytes, next, kLocalHeader) || Has(bytes, next, kDirectory)) return next;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Head> ReadHead(std::span<const std::byte> bytes) {
  constexpr std::string_view kPickle = "/data.pkl";
  Head out;
  std::string_view root;
  bool has_byteorder = false;  // torch 2.1 and newer write it in front of the data
  size_t at = 0;
  for (int i = 0; i < kMostRecords; ++i) {
    if (has_byteorder && Has(bytes, at, kDirectory)) return out;
    const std::optional<Record> record = RecordAt(bytes, at);
    if (!record.has_value()) return std::nullopt;
    if (i == 0) {
      if (!record->name.ends_with(kPickle)) return std::nullopt;
      root = record->name.substr(0, record->name.size() - kPickle.size());
    }
    std::string_view name = record->name;
    if (!name.starts_with(root) || name.substr(root.size()).find('/') != 0) return std::nullopt;
    name.remove_prefix(root.size() + 1);
    if (name == "data/0" && has_byteorder) {
      out.data = record->data;
      return out;
    }
    // Programs of TorchScript have a data.pkl as well.
    if (name.starts_with("data/") || name == "constants.pkl") return std::nullopt;
    size_t end = 0;
    const auto next = NextRecord(bytes, *record, i == 0 ? "." : "", end);
    if (!next.has_value()) return std::nullopt;
    const std::span<const std::byte> data = bytes.subspan(record->data, end - record->data);
    if (i == 0) out.pickle = data;
    if (name == "byteorder") {
      if (TextOf(data) != "little" && TextOf(data) != "big") return std::nullopt;
      out.big_endian = TextOf(data) == "big";
      has_byteorder = true;
    }
    at = *next;
  }
  return std::nullopt;
}

}  // namespace ckptd::dcp
