// The records of a zip file, as torch writes them (stored, aligned, zip64), and as Python's zipfile
// and other tools do. Trusts nothing: overlapping records, duplicate names, lying sizes and
// directories that disagree with their records are refused.
#ifndef CKPTD_COMMON_SOURCE_ZIP_ARCHIVE_H_
#define CKPTD_COMMON_SOURCE_ZIP_ARCHIVE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/storage.h"
#include "common/source/zip/object_part.h"

namespace ckptd::zip {

enum class Method : uint8_t { kStored, kDeflated };

struct Record {
  std::string name;  // any bytes
  Method method = Method::kStored;
  uint64_t offset = 0;       // of its bytes in the object, as its local header says
  uint64_t bytes = 0;        // in the object
  uint64_t plain_bytes = 0;  // once inflated, as the directory says; stored: equal to bytes
  uint32_t crc32 = 0;        // of the plain bytes; 0 also where nobody computed it
};

// Immutable; thread-safe. A part of an object can be an archive: [begin, begin + bytes).
class Archive {
 public:
  // Reads the directory and every local header, in the order of the file: data of records lie
  // apart, in front of the directory. Errors, with fact "file": DataLoss SOURCE_INVALID,
  // InvalidArgument SOURCE_INVALID where a limit is passed (kMaxRecords), Unimplemented
  // SOURCE_UNSUPPORTED for encrypted records and other methods; those of the storage.
  static absl::StatusOr<Archive> Open(std::shared_ptr<const ReadableObject> object);
  static absl::StatusOr<Archive> Open(std::shared_ptr<const ReadableObject> object, uint64_t begin,
                                      uint64_t bytes);

  static constexpr size_t kMaxRecords = 5'000'000;

  const std::vector<Record>& records() const { return records_; }  // in the order of the file
  const Record* Find(std::string_view name) const;                 // nullptr: none
  const ObjectPart& part() const { return part_; }

  // The plain bytes of a record, inflated where it is deflated, its CRC checked where one is
  // stated. Errors: DataLoss SOURCE_INVALID; InvalidArgument SOURCE_INVALID above `limit` bytes,
  // and where it would grow as nothing does that trainers write.
  absl::StatusOr<std::string> Read(const Record& record, size_t limit) const;

 private:
  ObjectPart part_;
  std::vector<Record> records_;
  std::vector<uint32_t> by_name_;  // numbers of records_, sorted by their names
};

}  // namespace ckptd::zip

#endif  // CKPTD_COMMON_SOURCE_ZIP_ARCHIVE_H_
