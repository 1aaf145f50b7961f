#include "common/source/zip/archive.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "common/base/checked_math.h"
#include "common/base/escape.h"
#include "common/base/status.h"
#include "common/source/text.h"
#include "common/source/zip/directory.h"
#include "common/source/zip/inflate.h"
#include "common/source/zip/nearby_reads.h"

namespace ckptd::zip {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr size_t kLocalBytes = 30;
// The sizes stand behind the data, and in the directory.
constexpr uint16_t kHasDescriptor = 8;
// A header and a short name.
constexpr size_t kUsualHeaderBytes = 256;

std::string Shown(const Record& record) { return Quoted(Escape(record.name)); }

absl::Status Disagrees(const ObjectPart& part, const Record& record, std::string_view what) {
  return part.Invalid(fmt::format(
      "record {} and the directory disagree about {}; save or copy it again", Shown(record), what));
}

// A local header: its numbers, name and field of zip64.
class LocalHeader {
 public:
  static absl::StatusOr<LocalHeader> Read(const ObjectPart& part, NearbyReads& reads,
                                          uint64_t offset, size_t name_bytes) {
    LocalHeader out;
    CKPTD_ASSIGN_OR_RETURN(out.bytes_, reads.Get(offset, kLocalBytes));
    const size_t whole = kLocalBytes + out.name_bytes() + out.extra_bytes();
    if (!out.IsHeader() || out.name_bytes() != name_bytes) {
      return part.Invalid(fmt::format(
          "at byte {} there is no record, as its directory says; save or copy it again", offset));
    }
    // The padding that torch puts there is of no interest.
    const size_t wanted = out.HasWideSizes() ? whole : kLocalBytes + name_bytes;
    CKPTD_ASSIGN_OR_RETURN(out.bytes_, reads.Get(offset, wanted));
    return out;
  }

  std::string_view name() const {
    return {reinterpret_cast<const char*>(bytes_.subspan(kLocalBytes).data()), name_bytes()};
  }
  uint64_t data_offset() const { return kLocalBytes + name_bytes() + extra_bytes(); }
  uint16_t flags() const { return Number16(6); }
  uint16_t method() const { return Number16(8); }
  // Whether its own sizes, where it states them, are those.
  bool StatesSizes(uint64_t bytes, uint64_t plain_bytes) const {
    std::vector<uint64_t> wide;
    if (HasWideSizes()) wide = Zip64Numbers(bytes_.subspan(kLocalBytes + name_bytes()));
    size_t used = 0;
    const auto is = [&](size_t at, uint64_t want) {
      const auto number = LittleAt<uint32_t>(bytes_, at);
      if (number != kIn64) return number == want || (number == 0 && has_descriptor());
      // Some writers leave it out where a descriptor follows.
      if (used == wide.size()) return has_descriptor();
      const uint64_t moved = wide[used++];
      return moved == want || (moved == 0 && has_descriptor());
    };
    return is(22, plain_bytes) && is(18, bytes);
  }

 private:
  uint16_t Number16(size_t at) const { return LittleAt<uint16_t>(bytes_, at); }
  size_t name_bytes() const { return Number16(26); }
  size_t extra_bytes() const { return Number16(28); }
  bool has_descriptor() const { return (flags() & kHasDescriptor) != 0; }
  bool IsHeader() const { return LittleAt<uint32_t>(bytes_, 0) == kLocalSignature; }
  bool HasWideSizes() const {
    return LittleAt<uint32_t>(bytes_, 18) == kIn64 || LittleAt<uint32_t>(bytes_, 22) == kIn64;
  }

  std::span<const std::byte> bytes_;
};

// Holds a record against its local header and sets its offset. `end` is where the next header, or
// the directory, begins.
absl::Status Place(const ObjectPart& part, NearbyReads& reads, uint64_t end,
                   DirectoryEntry& entry) {
  Record& record = entry.record;
  CKPTD_ASSIGN_OR_RETURN(
      const LocalHeader header,
      LocalHeader::Read(part, reads, entry.header_offset, record.name.size()));
  if (header.name() != record.name) return Disagrees(part, record, "its name");
  const uint16_t method = record.method == Method::kStored ? 0 : 8;
  if (header.method() != method || (header.flags() & kEncrypted) != 0) {
    return Disagrees(part, record, "how it is packed");
  }
  if (!header.StatesSizes(record.bytes, record.plain_bytes)) {
    return Disagrees(part, record, "its size");
  }
  const uint64_t begin = entry.header_offset + header.data_offset();
  if (begin > end || record.bytes > end - begin) {
    return part.Invalid(fmt::format("record {} overlaps what follows it; save or copy it again",
                                    Shown(record)));
  }
  record.offset = part.begin + begin;
  return absl::OkStatus();
}

absl::Status PlaceAll(const ObjectPart& part, uint64_t directory_offset,
                      std::vector<DirectoryEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const DirectoryEntry& a, const DirectoryEntry& b) {
    return a.header_offset < b.header_offset;
  });
  std::vector<uint64_t> offsets;
  offsets.reserve(entries.size());
  for (const DirectoryEntry& entry : entries) offsets.push_back(entry.header_offset);
  NearbyReads reads(part, offsets, kUsualHeaderBytes);
  for (size_t i = 0; i < entries.size(); ++i) {
    const uint64_t next = i + 1 < entries.size() ? offsets[i + 1] : directory_offset;
    CKPTD_RETURN_IF_ERROR(Place(part, reads, std::min(next, directory_offset), entries[i]));
  }
  return absl::OkStatus();
}

// Pickles shrink to a tenth or so. What shrinks much more is made to fill memory.
constexpr uint64_t kInflatedFreely = 16 << 20;
constexpr uint64_t kMostPerPackedByte = 200;

}  // namespace

absl::StatusOr<Archive> Archive::Open(std::shared_ptr<const ReadableObject> object) {
  const uint64_t begin = object->begin();
  const uint64_t bytes = object->size() - begin;
  return Open(std::move(object), begin, bytes);
}

absl::StatusOr<Archive> Archive::Open(std::shared_ptr<const ReadableObject> object, uint64_t begin,
                                      uint64_t bytes) {
  Archive out;
  out.part_ = {std::move(object), begin, bytes};
  if (CheckedAdd(begin, bytes).value_or(UINT64_MAX) > out.part_.object->size()) {
    return out.part_.Invalid("it ends before a part of it that is to be there; copy it again");
  }
  CKPTD_ASSIGN_OR_RETURN(const DirectoryPlace place, FindDirectory(out.part_));
  CKPTD_ASSIGN_OR_RETURN(std::vector<DirectoryEntry> entries, ReadDirectory(out.part_, place));
  CKPTD_RETURN_IF_ERROR(PlaceAll(out.part_, place.offset, entries));
  out.records_.reserve(entries.size());
  for (DirectoryEntry& entry : entries) out.records_.push_back(std::move(entry.record));
  const std::vector<Record>& records = out.records_;
  out.by_name_.resize(records.size());
  std::iota(out.by_name_.begin(), out.by_name_.end(), 0U);
  std::sort(out.by_name_.begin(), out.by_name_.end(), [&records](uint32_t a, uint32_t b) {
    return records[a].name < records[b].name;
  });
  const auto twice = std::adjacent_find(
      out.by_name_.begin(), out.by_name_.end(),
      [&records](uint32_t a, uint32_t b) { return records[a].name == records[b].name; });
  if (twice != out.by_name_.end()) {
    return out.part_.Invalid(fmt::format("it holds two records {}; save it again",
                                         Shown(records[*twice])));
  }
  return out;
}

const Record* Archive::Find(std::string_view name) const {
  const auto at = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t record, std::string_view key) { return records_[record].name < key; });
  return at != by_name_.end() && records_[*at].name == name ? &records_[*at] : nullptr;
}

absl::StatusOr<std::string> Archive::Read(const Record& record, size_t limit) const {
  if (record.plain_bytes > limit) {
    return part_.AboveLimit(fmt::format("its record {} has {} bytes, at most {} are read; save "
                                        "less in one file",
                                        Shown(record), record.plain_bytes, limit));
  }
  std::string plain;
  if (record.method == Method::kDeflated) {
    if (record.plain_bytes > kInflatedFreely &&
        record.plain_bytes / kMostPerPackedByte > record.bytes) {
      return part_.AboveLimit(fmt::format("its record {} would grow from {} to {} bytes, which no "
                                          "file does that trainers write; save it again",
                                          Shown(record), record.bytes, record.plain_bytes));
    }
    CKPTD_ASSIGN_OR_RETURN(plain, Inflate(part_, record));
  } else {
    plain.resize(static_cast<size_t>(record.bytes));
    CKPTD_RETURN_IF_ERROR(part_.ReadAt(record.offset - part_.begin,
                                       std::as_writable_bytes(std::span(plain))));
  }
  const uLong crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(plain.data()), plain.size());
  if (record.crc32 != 0 && crc != record.crc32) {
    return part_.Invalid(fmt::format(
        "record {} is not what was written: its checksum differs; copy it again", Shown(record)));
  }
  return plain;
}

}  // namespace ckptd::zip
