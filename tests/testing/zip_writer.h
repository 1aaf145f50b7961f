// Zip files byte by byte, as torch writes them, for tests that spoil them.
#ifndef CKPTD_TESTS_TESTING_ZIP_WRITER_H_
#define CKPTD_TESTS_TESTING_ZIP_WRITER_H_

#include <zlib.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckptd {

// Little-endian numbers behind `out`.
inline void Put(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i, value >>= 8) out.push_back(static_cast<char>(value & 0xff));
}

struct ZipRecord {
  std::string name;
  std::string bytes;  // as they lie in the file
  // The bytes of the record once inflated; for a stored one, `bytes` itself.
  std::string plain = bytes;
  uint16_t method = 0;
  uint16_t flags = 0x0808;  // a descriptor follows, UTF-8
  uint32_t crc = static_cast<uint32_t>(
      ::crc32_z(0, reinterpret_cast<const Bytef*>(plain.data()), plain.size()));
  bool wide = false;  // its numbers are in fields of zip64
};

struct ZipOptions {
  size_t alignment = 64;  // of data; 1: none
  bool wide_end = true;   // an end record of zip64, too
  std::string comment = {};
};

// Where its parts lie, for tests that spoil them.
struct ZipFile {
  std::string bytes;
  std::vector<size_t> headers;  // of the records
  std::vector<size_t> data;
  std::vector<size_t> entries;  // of the directory
  size_t directory = 0;
  size_t wide_end = 0;
  size_t end = 0;
};

inline void PutLocalHeader(const ZipRecord& record, const ZipOptions& options, ZipFile& file) {
  std::string& out = file.bytes;
  const bool described = (record.flags & 8) != 0;
  file.headers.push_back(out.size());
  std::string extra;
  if (record.wide) {
    Put(extra, 1, 2);
    Put(extra, 16, 2);
    Put(extra, described ? 0 : record.plain.size(), 8);
    Put(extra, described ? 0 : record.bytes.size(), 8);
  }
  const size_t begin = out.size() + 30 + record.name.size() + extra.size();
  if (begin % options.alignment != 0) {
    const size_t fill = options.alignment - (begin + 4) % options.alignment;
    extra += "FB";
    Put(extra, fill, 2);
    extra.append(fill, 'Z');
  }
  Put(out, 0x04034b50, 4);
  Put(out, 0, 2);
  Put(out, record.flags, 2);
  Put(out, record.method, 2);
  Put(out, 0, 4);
  Put(out, described ? 0 : record.crc, 4);
  Put(out, record.wide ? 0xffffffff : described ? 0 : record.bytes.size(), 4);
  Put(out, record.wide ? 0xffffffff : described ? 0 : record.plain.size(), 4);
  Put(out, record.name.size(), 2);
  Put(out, extra.size(), 2);
  out += record.name + extra;
  file.data.push_back(out.size());
  out += record.bytes;
  if (!described) return;
  Put(out, 0x08074b50, 4);
  Put(out, record.crc, 4);
  Put(out, record.bytes.size(), record.wide ? 8 : 4);
  Put(out, record.plain.size(), record.wide ? 8 : 4);
}

inline void PutEntry(const ZipRecord& record, size_t header, ZipFile& file) {
  std::string& out = file.bytes;
  file.entries.push_back(out.size());
  Put(out, 0x02014b50, 4);
  Put(out, 0, 4);
  Put(out, record.flags, 2);
  Put(out, record.method, 2);
  Put(out, 0, 4);
  Put(out, record.crc, 4);
  Put(out, record.wide ? 0xffffffff : record.bytes.size(), 4);
  Put(out, record.wide ? 0xffffffff : record.plain.size(), 4);
  Put(out, record.name.size(), 2);
  Put(out, record.wide ? 28 : 0, 2);
  Put(out, 0, 10);  // comment, disk, attributes
  Put(out, record.wide ? 0xffffffff : header, 4);
  out += record.name;
  if (!record.wide) return;
  Put(out, 1, 2);
  Put(out, 24, 2);
  Put(out, record.plain.size(), 8);
  Put(out, record.bytes.size(), 8);
  Put(out, header, 8);
}

inline ZipFile WriteZip(const std::vector<ZipRecord>& records, const ZipOptions& options = {}) {
  ZipFile file;
  std::string& out = file.bytes;
  for (const ZipRecord& record : records) PutLocalHeader(record, options, file);
  file.directory = out.size();
  for (size_t i = 0; i < records.size(); ++i) PutEntry(records[i], file.headers[i], file);
  const size_t directory_bytes = out.size() - file.directory;
  file.wide_end = out.size();
  if (options.wide_end) {
    Put(out, 0x06064b50, 4);
    Put(out, 44, 8);
    Put(out, 0, 4);  // versions
    Put(out, 0, 8);  // disks
    Put(out, records.size(), 8);
    Put(out, records.size(), 8);
    Put(out, directory_bytes, 8);
    Put(out, file.directory, 8);
    Put(out, 0x07064b50, 4);
    Put(out, 0, 4);
    Put(out, file.wide_end, 8);
    Put(out, 1, 4);
  }
  file.end = out.size();
  Put(out, 0x06054b50, 4);
  Put(out, 0, 4);
  Put(out, records.size(), 2);
  Put(out, records.size(), 2);
  Put(out, directory_bytes, 4);
  Put(out, file.directory, 4);
  Put(out, options.comment.size(), 2);
  out += options.comment;
  return file;
}

// `plain` as deflate packs it.
inline std::string Deflated(std::string_view plain) {
  z_stream stream = {};
  ::deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(::deflateBound(&stream, plain.size()), '\0');
  std::string in(plain);
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  ::deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

inline ZipRecord DeflatedRecord(std::string name, const std::string& plain) {
  return {.name = std::move(name), .bytes = Deflated(plain), .plain = plain, .method = 8};
}

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_ZIP_WRITER_H_
