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
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/source/storage.h"

namespace ckptd::zip {

enum class Method : uint8_t { kStored, kDeflated };

struct Record {
  std::string name;
  Method method = Method::kStored;
  uint64_t offset = 0;        // of its bytes in the object, as its local header says
  uint64_t bytes = 0;         // in the object
  uint64_t plain_bytes = 0;   // once inflated; stored: equal to bytes
  uint32_t crc32 = 0;         // of the plain bytes
  bool is_encrypted = false;
};

// Immutable; thread-safe. A part of an object can be an archive: [begin, begin + bytes).
class Archive {
 public:
  // Reads the directory and every local header, in the order of the file. Errors, with fact
  // "file": DataLoss SOURCE_INVALID, InvalidArgument SOURCE_INVALID where a limit is passed
  // (kMaxRecords), those of the storage.
  static absl::StatusOr<Archive> Open(std::shared_ptr<const ReadableObject> object);
  static absl::StatusOr<Archive> Open(std::shared_ptr<const ReadableObject> object, uint64_t begin,
                                      uint64_t bytes);

  static constexpr size_t kMaxRecords = 5'000'000;

  const std::vector<Record>& records() const { return records_; }  // in the order of the file
  const Record* Find(std::string_view name) const;                 // nullptr: none
  const ReadableObject& object() const { return *object_; }

  // The plain bytes of a record, inflated where it is deflated, its CRC checked where one is
  // stated. Errors: DataLoss SOURCE_INVALID; InvalidArgument SOURCE_INVALID above `limit` bytes.
  absl::StatusOr<std::string> Read(const Record& record, size_t limit) const;

 private:
  std::shared_ptr<const ReadableObject> object_;
  std::vector<Record> records_;
  std::unordered_map<std::string, size_t> by_name_;
};

}  // namespace ckptd::zip

#endif  // CKPTD_COMMON_SOURCE_ZIP_ARCHIVE_H_
