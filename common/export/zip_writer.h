// Writes zip archives of stored records, as torch's own writer lays them out.
#ifndef CKPTD_COMMON_EXPORT_ZIP_WRITER_H_
#define CKPTD_COMMON_EXPORT_ZIP_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/export/output_file.h"

namespace ckptd {

// One archive in a file, which begins where the file ends when this is made; there may be others
// before and behind it. Payloads begin at multiples of kAlignment from there. Without Finish() there
// is no archive. Not thread-safe. Errors: OutputFile's.
class ZipWriter {
 public:
  static constexpr uint64_t kAlignment = 64;

  // Names of records begin with "ROOT/".
  ZipWriter(OutputFile& out, std::string_view root)
      : out_(out), root_(root), begin_(out.size()) {}

  absl::Status Add(std::string_view name, std::string_view text);

  // A record of `bytes`, which the caller appends to the file between the two calls.
  absl::Status Begin(std::string_view name, uint64_t bytes);
  absl::Status End(uint32_t crc);

  absl::Status Finish();

 private:
  struct Record {
    std::string name;
    uint64_t offset = 0;  // of its header in the archive
    uint64_t bytes = 0;
    uint32_t crc = 0;
  };

  static void AddDirectoryEntry(const Record& record, std::string& directory);
  static std::string DirectoryEnd(uint64_t records, uint64_t offset, uint64_t bytes);

  OutputFile& out_;
  const std::string root_;
  const uint64_t begin_;
  std::vector<Record> records_;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_ZIP_WRITER_H_
