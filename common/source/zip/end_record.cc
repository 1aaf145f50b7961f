// Where the directory lies: the records at the end of a zip file.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "common/base/checked_math.h"
#include "common/base/status.h"
#include "common/source/zip/directory.h"

namespace ckptd::zip {
namespace {

constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocatorSignature = 0x07064b50;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocatorBytes = 20;
constexpr uint64_t kLongestComment = 65'535;
constexpr uint64_t kEntryBytes = 46;

struct EndRecord {
  uint64_t offset = 0;
  bool is_first_disk = false;
  uint16_t records_here = 0;
  uint16_t records = 0;
  uint32_t directory_bytes = 0;
  uint32_t directory_offset = 0;
};

// The last end record within the last `tail_bytes`; nullopt: there is none.
absl::StatusOr<std::optional<EndRecord>> FindEnd(const ObjectPart& part, uint64_t tail_bytes) {
  std::vector<std::byte> tail(static_cast<size_t>(std::min(part.bytes, tail_bytes)));
  const uint64_t begin = part.bytes - tail.size();
  CKPTD_RETURN_IF_ERROR(part.ReadAt(begin, tail));
  for (size_t at = tail.size() - kEndBytes + 1; at-- > 0;) {
    if (LittleAt<uint32_t>(tail, at) != kEndSignature) continue;
    if (at + kEndBytes + LittleAt<uint16_t>(tail, at + 20) != tail.size()) {
      return part.Invalid(
          "something stands behind the end of the zip file that it is; copy it again");
    }
    EndRecord end;
    end.offset = begin + at;
    end.is_first_disk =
        LittleAt<uint16_t>(tail, at + 4) == 0 && LittleAt<uint16_t>(tail, at + 6) == 0;
    end.records_here = LittleAt<uint16_t>(tail, at + 8);
    end.records = LittleAt<uint16_t>(tail, at + 10);
    end.directory_bytes = LittleAt<uint32_t>(tail, at + 12);
    end.directory_offset = LittleAt<uint32_t>(tail, at + 16);
    return end;
  }
  return std::nullopt;
}

absl::Status Disagree(const ObjectPart& part) {
  return part.Invalid("its two end records disagree about its directory; save or copy it again");
}

// Whether a field of the end record says nothing else than that of zip64.
template <typename Narrow>
bool Agrees(Narrow narrow, uint64_t wide) {
  return narrow == static_cast<Narrow>(-1) || narrow == wide;
}

// The record of zip64 in front of `end`; nullopt: there is none. Sets `offset` to its begin.
absl::StatusOr<std::optional<DirectoryPlace>> FindEnd64(const ObjectPart& part,
                                                        const EndRecord& end, uint64_t& offset) {
  if (end.offset < kLocatorBytes) return std::nullopt;
  std::array<std::byte, kLocatorBytes> locator;
  const uint64_t locator_at = end.offset - kLocatorBytes;
  CKPTD_RETURN_IF_ERROR(part.ReadAt(locator_at, locator));
  if (LittleAt<uint32_t>(locator, 0) != kLocatorSignature) return std::nullopt;
  offset = LittleAt<uint64_t>(locator, 8);
  if (locator_at < kEnd64Bytes || offset > locator_at - kEnd64Bytes) return Disagree(part);
  std::array<std::byte, kEnd64Bytes> record;
  CKPTD_RETURN_IF_ERROR(part.ReadAt(offset, record));
  const auto size = CheckedAdd(LittleAt<uint64_t>(record, 4), offset + 12);
  const bool is_whole = LittleAt<uint32_t>(record, 0) == kEnd64Signature && size == locator_at;
  const bool is_one_disk = LittleAt<uint32_t>(record, 16) == 0 &&
                           LittleAt<uint32_t>(record, 20) == 0 &&
                           LittleAt<uint64_t>(record, 24) == LittleAt<uint64_t>(record, 32);
  const DirectoryPlace place = {LittleAt<uint64_t>(record, 48), LittleAt<uint64_t>(record, 40),
                                LittleAt<uint64_t>(record, 32)};
  if (!is_whole || !is_one_disk || !Agrees(end.records, place.records) ||
      !Agrees(end.directory_bytes, place.bytes) || !Agrees(end.directory_offset, place.offset)) {
    return Disagree(part);
  }
  return place;
}

}  // namespace

absl::StatusOr<DirectoryPlace> FindDirectory(const ObjectPart& part) {
  constexpr std::string_view kCut =
      "it has no directory at its end, which every zip file has: it was cut short, or is none; "
      "finish the download or copy";
  if (part.bytes < kEndBytes) return part.Invalid(kCut);
  std::optional<EndRecord> end;
  // torch writes no comment.
  for (const uint64_t tail : {kEndBytes, kEndBytes + kLongestComment}) {
    CKPTD_ASSIGN_OR_RETURN(end, FindEnd(part, tail));
    if (end.has_value()) break;
  }
  if (!end.has_value()) return part.Invalid(kCut);
  uint64_t directory_end = end->offset;
  CKPTD_ASSIGN_OR_RETURN(const std::optional<DirectoryPlace> wide,
                         FindEnd64(part, *end, directory_end));
  const bool is_one_disk = end->is_first_disk && end->records_here == end->records;
  if (!wide.has_value() && !is_one_disk) {
    return part.Unsupported("it is a part of a zip file of several disks; join them");
  }
  const DirectoryPlace place = wide.value_or(
      DirectoryPlace{end->directory_offset, end->directory_bytes, end->records});
  if (CheckedAdd(place.offset, place.bytes) != directory_end) {
    return part.Invalid("its directory does not lie where its end record says; copy it again");
  }
  if (place.records > Archive::kMaxRecords) {
    return part.AboveLimit("it holds more records than are read; save it in several files");
  }
  if (place.records > place.bytes / kEntryBytes) {
    return part.Invalid("its directory is too short for its records; copy it again");
  }
  return place;
}

}  // namespace ckptd::zip
