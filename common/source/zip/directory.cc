#include "common/source/zip/directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/text.h"

namespace ckptd::zip {
namespace {

constexpr uint32_t kEntrySignature = 0x02014b50;
constexpr size_t kEntryBytes = 46;
constexpr uint16_t kZip64Field = 1;
// An entry is at most 46 bytes and three texts of 64 KiB.
constexpr size_t kLongestEntry = 256 << 10;
constexpr size_t kReadBytes = 1 << 20;

// The bytes of the directory, one read after the other.
class DirectoryBytes {
 public:
  DirectoryBytes(const ObjectPart& part, const DirectoryPlace& place)
      : part_(part), next_(place.offset), end_(place.offset + place.bytes) {}

  // The bytes that are left: at least the next entry, if one is left.
  absl::StatusOr<std::span<const std::byte>> Rest() {
    const size_t have = buffer_.size() - at_;
    if (have < kLongestEntry && next_ < end_) {
      buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(at_));
      at_ = 0;
      const auto more = static_cast<size_t>(std::min<uint64_t>(kReadBytes, end_ - next_));
      buffer_.resize(have + more);
      CKPTD_RETURN_IF_ERROR(part_.ReadAt(next_, std::span(buffer_).subspan(have)));
      next_ += more;
    }
    return std::span<const std::byte>(buffer_).subspan(at_);
  }
  void Skip(size_t bytes) { at_ += bytes; }

 private:
  const ObjectPart& part_;
  uint64_t next_;
  const uint64_t end_;
  std::vector<std::byte> buffer_;
  size_t at_ = 0;
};

// Puts the numbers that zip64 moved out of the entry back in their places. False: one is missing.
bool WidenNumbers(std::span<const std::byte> extra, DirectoryEntry& entry) {
  uint64_t* const fields[] = {&entry.record.plain_bytes, &entry.record.bytes,
                              &entry.header_offset};
  if (std::none_of(std::begin(fields), std::end(fields),
                   [](const uint64_t* field) { return *field == kIn64; })) {
    return true;
  }
  const std::vector<uint64_t> numbers = Zip64Numbers(extra);
  size_t used = 0;
  for (uint64_t* field : fields) {
    if (*field != kIn64) continue;
    if (used == numbers.size()) return false;
    *field = numbers[used++];
  }
  return true;
}

absl::Status CheckEntry(const ObjectPart& part, const DirectoryEntry& entry, uint16_t flags,
                        uint16_t method) {
  const std::string name = Quoted(Escape(entry.record.name));
  if ((flags & kEncrypted) != 0) {
    return part.Unsupported(fmt::format("its record {} is encrypted; unpack it, and save it again",
                                        name));
  }
  if (method != 0 && method != 8) {
    return part.Unsupported(
        fmt::format("its record {} is compressed by method {}, which is not read; unpack it, and "
                    "save it again",
                    name, method));
  }
  if (entry.record.method == Method::kStored && entry.record.bytes != entry.record.plain_bytes) {
    return part.Invalid(fmt::format("its record {} is not compressed and has two sizes; save or "
                                    "copy it again",
                                    name));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<uint64_t> Zip64Numbers(std::span<const std::byte> extra) {
  std::vector<uint64_t> numbers;
  while (extra.size() >= 4) {
    const auto id = LittleAt<uint16_t>(extra, 0);
    const size_t bytes = LittleAt<uint16_t>(extra, 2);
    extra = extra.subspan(4);
    if (bytes > extra.size()) break;
    if (id == kZip64Field) {
      for (size_t at = 0; at + 8 <= bytes; at += 8) {
        numbers.push_back(LittleAt<uint64_t>(extra, at));
      }
      break;
    }
    extra = extra.subspan(bytes);
  }
  return numbers;
}

absl::StatusOr<std::vector<DirectoryEntry>> ReadDirectory(const ObjectPart& part,
                                                          const DirectoryPlace& place) {
  constexpr std::string_view kTorn = "its directory is damaged; save or copy it again";
  DirectoryBytes bytes(part, place);
  std::vector<DirectoryEntry> entries;
  for (uint64_t i = 0; i < place.records; ++i) {
    CKPTD_ASSIGN_OR_RETURN(const std::span<const std::byte> rest, bytes.Rest());
    if (rest.size() < kEntryBytes || LittleAt<uint32_t>(rest, 0) != kEntrySignature) {
      return part.Invalid(kTorn);
    }
    const size_t name_bytes = LittleAt<uint16_t>(rest, 28);
    const size_t extra_bytes = LittleAt<uint16_t>(rest, 30);
    const size_t whole = kEntryBytes + name_bytes + extra_bytes + LittleAt<uint16_t>(rest, 32);
    if (whole > rest.size()) return part.Invalid(kTorn);
    DirectoryEntry& entry = entries.emplace_back();
    const auto method = LittleAt<uint16_t>(rest, 10);
    entry.record.method = method == 0 ? Method::kStored : Method::kDeflated;
    entry.record.crc32 = LittleAt<uint32_t>(rest, 16);
    entry.record.bytes = LittleAt<uint32_t>(rest, 20);
    entry.record.plain_bytes = LittleAt<uint32_t>(rest, 24);
    entry.header_offset = LittleAt<uint32_t>(rest, 42);
    entry.record.name.assign(
        reinterpret_cast<const char*>(rest.subspan(kEntryBytes, name_bytes).data()), name_bytes);
    if (!WidenNumbers(rest.subspan(kEntryBytes + name_bytes, extra_bytes), entry)) {
      return part.Invalid(kTorn);
    }
    CKPTD_RETURN_IF_ERROR(CheckEntry(part, entry, LittleAt<uint16_t>(rest, 8), method));
    bytes.Skip(whole);
  }
  CKPTD_ASSIGN_OR_RETURN(const std::span<const std::byte> rest, bytes.Rest());
  if (!rest.empty()) {
    return part.Invalid("its directory holds more records than it says; copy it again");
  }
  return entries;
}

}  // namespace ckptd::zip
