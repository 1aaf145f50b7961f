#include "common/source/zip/inflate.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <span>
#include <vector>

#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd::zip {
namespace {

constexpr size_t kReadBytes = 256 << 10;
// Deflate writes at most 258 bytes for 2 bits.
constexpr uint64_t kMostPerByte = 1032;

// Owns a stream of zlib that reads deflate without a header.
class Stream {
 public:
  Stream() : ok_(::inflateInit2(&stream_, -MAX_WBITS) == Z_OK) {}
  ~Stream() {
    if (ok_) ::inflateEnd(&stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool ok() const { return ok_; }
  z_stream& operator*() { return stream_; }

 private:
  z_stream stream_ = {};
  bool ok_;
};

absl::Status Damaged(const ObjectPart& part, const Record& record) {
  return part.Invalid(fmt::format("its compressed record {} is damaged; save or copy it again",
                                  Quoted(Escape(record.name))));
}

// Takes all of `in`, writes to `out` behind its first `done` bytes.
absl::Status Feed(const ObjectPart& part, const Record& record, Stream& stream,
                  std::span<std::byte> in, std::string& out, size_t& done, bool& ended) {
  (*stream).next_in = reinterpret_cast<Bytef*>(in.data());
  (*stream).avail_in = static_cast<uInt>(in.size());
  // Output that found no room is left in the stream, also when all input was taken.
  while (!ended && ((*stream).avail_in > 0 || done == out.size())) {
    if (done == out.size()) {
      // One byte too many shows that the record lies about its size.
      const uint64_t most = record.plain_bytes + 1;
      if (done == most) return Damaged(part, record);
      out.resize(static_cast<size_t>(std::min<uint64_t>(most, out.size() * 2 + kReadBytes)));
    }
    const size_t room = std::min<size_t>(out.size() - done, uInt(-1));
    (*stream).next_out = reinterpret_cast<Bytef*>(out.data() + done);
    (*stream).avail_out = static_cast<uInt>(room);
    const int result = ::inflate(&*stream, Z_NO_FLUSH);
    done += room - (*stream).avail_out;
    ended = result == Z_STREAM_END;
    const bool waits = result == Z_BUF_ERROR && (*stream).avail_in == 0;
    if (result != Z_OK && !ended && !waits) return Damaged(part, record);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> Inflate(const ObjectPart& part, const Record& record) {
  const uint64_t least = record.plain_bytes / kMostPerByte;
  if (record.bytes < least) return Damaged(part, record);
  Stream stream;
  if (!stream.ok()) return part.AboveLimit("no memory to unpack it; free some");
  std::vector<std::byte> in(static_cast<size_t>(std::min<uint64_t>(record.bytes, kReadBytes)));
  std::string out;
  size_t done = 0;
  bool ended = false;
  for (uint64_t at = 0; at < record.bytes && !ended; at += in.size()) {
    in.resize(static_cast<size_t>(std::min<uint64_t>(in.size(), record.bytes - at)));
    CKPTD_RETURN_IF_ERROR(part.ReadAt(record.offset - part.begin + at, in));
    CKPTD_RETURN_IF_ERROR(Feed(part, record, stream, in, out, done, ended));
  }
  if (!ended || done != record.plain_bytes || (*stream).avail_in != 0) {
    return Damaged(part, record);
  }
  out.resize(done);
  return out;
}

}  // namespace ckptd::zip
