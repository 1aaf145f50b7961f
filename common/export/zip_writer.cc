#include "common/export/zip_writer.h"

#include <span>

#include "common/base/status.h"
#include "common/export/crc32.h"

namespace ckptd {
namespace {

// APPNOTE.TXT 4.3: numbers of 64 bits stand in an extra field where those of 32 are full.
constexpr uint32_t kFull32 = 0xffffffff;
constexpr uint16_t kFull16 = 0xffff;
constexpr uint16_t kPlain = 20;       // versions needed to extract
constexpr uint16_t kWithZip64 = 45;
constexpr uint16_t kUtf8 = 0x0800;
constexpr uint16_t kZip64Extra = 0x0001;
constexpr uint16_t kPaddingExtra = 0x4246;  // "FB", as torch's
constexpr uint16_t kFirstDay = 0x21;  // 1980-01-01
constexpr uint64_t kCrcOffset = 14;   // in a local header
constexpr uint64_t kLocalHeaderBytes = 30;
constexpr uint64_t kExtraHeaderBytes = 4;

void Put(uint64_t number, int bytes, std::string& out) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xff);
}
void Put16(uint64_t number, std::string& out) { Put(number, 2, out); }
void Put32(uint64_t number, std::string& out) { Put(number, 4, out); }
void Put64(uint64_t number, std::string& out) { Put(number, 8, out); }

bool IsLarge(uint64_t number) { return number >= kFull32; }
uint64_t Short(uint64_t number) { return IsLarge(number) ? kFull32 : number; }

// From the needed version to the length of the name; both kinds of headers have these.
void PutCommon(bool zip64, uint32_t crc, uint64_t bytes, size_t name, std::string& out) {
  Put16(zip64 ? kWithZip64 : kPlain, out);
  Put16(kUtf8, out);
  Put16(0, out);  // stored
  Put16(0, out);  // midnight
  Put16(kFirstDay, out);
  Put32(crc, out);
  Put32(Short(bytes), out);
  Put32(Short(bytes), out);
  Put16(name, out);
}

}  // namespace

absl::Status ZipWriter::Begin(std::string_view name, uint64_t bytes) {
  const uint64_t at = out_.size() - begin_;
  const Record& record = records_.emplace_back(
      Record{.name = root_ + "/" + std::string(name), .offset = at, .bytes = bytes});
  const bool zip64 = IsLarge(bytes);
  std::string extra;
  if (zip64) {
    Put16(kZip64Extra, extra);
    Put16(16, extra);
    Put64(bytes, extra);
    Put64(bytes, extra);
  }
  const uint64_t end =
      at + kLocalHeaderBytes + record.name.size() + extra.size() + kExtraHeaderBytes;
  const uint64_t padding = (kAlignment - end % kAlignment) % kAlignment;
  Put16(kPaddingExtra, extra);
  Put16(padding, extra);
  extra.append(padding, 'Z');
  std::string header = "PK\x03\x04";
  PutCommon(zip64, 0, bytes, record.name.size(), header);
  Put16(extra.size(), header);
  return out_.Append(header + record.name + extra);
}

absl::Status ZipWriter::End(uint32_t crc) {
  records_.back().crc = crc;
  std::string text;
  Put32(crc, text);
  return out_.WriteAt(begin_ + records_.back().offset + kCrcOffset, text);
}

absl::Status ZipWriter::Add(std::string_view name, std::string_view text) {
  CKPTD_RETURN_IF_ERROR(Begin(name, text.size()));
  CKPTD_RETURN_IF_ERROR(out_.Append(text));
  return End(Crc32(0, std::as_bytes(std::span(text.data(), text.size()))));
}

void ZipWriter::AddDirectoryEntry(const Record& record, std::string& directory) {
  std::string extra;
  if (IsLarge(record.bytes)) {
    Put64(record.bytes, extra);
    Put64(record.bytes, extra);
  }
  if (IsLarge(record.offset)) Put64(record.offset, extra);
  const bool zip64 = !extra.empty();
  directory += "PK\x01\x02";
  Put16(zip64 ? kWithZip64 : kPlain, directory);  // made by
  PutCommon(zip64, record.crc, record.bytes, record.name.size(), directory);
  Put16(zip64 ? extra.size() + kExtraHeaderBytes : 0, directory);
  Put16(0, directory);  // no comment
  Put16(0, directory);  // first disk
  Put16(0, directory);
  Put32(0, directory);
  Put32(Short(record.offset), directory);
  directory += record.name;
  if (!zip64) return;
  Put16(kZip64Extra, directory);
  Put16(extra.size(), directory);
  directory += extra;
}

std::string ZipWriter::DirectoryEnd(uint64_t records, uint64_t offset, uint64_t bytes) {
  std::string out;
  if (records >= kFull16 || IsLarge(offset) || IsLarge(bytes)) {
    out = "PK\x06\x06";
    Put64(44, out);  // bytes of this record that follow
    Put16(kWithZip64, out);
    Put16(kWithZip64, out);
    Put64(0, out);  // both disks
    Put64(records, out);
    Put64(records, out);
    Put64(bytes, out);
    Put64(offset, out);
    out += "PK\x06\x07";
    Put32(0, out);
    Put64(offset + bytes, out);
    Put32(1, out);
  }
  out += "PK\x05\x06";
  Put32(0, out);
  const uint64_t count = records >= kFull16 ? kFull16 : records;
  Put16(count, out);
  Put16(count, out);
  Put32(Short(bytes), out);
  Put32(Short(offset), out);
  Put16(0, out);
  return out;
}

absl::Status ZipWriter::Finish() {
  const uint64_t offset = out_.size() - begin_;
  std::string directory;
  for (const Record& record : records_) AddDirectoryEntry(record, directory);
  CKPTD_RETURN_IF_ERROR(out_.Append(directory));
  return out_.Append(DirectoryEnd(records_.size(), offset, directory.size()));
}

}  // namespace ckptd
