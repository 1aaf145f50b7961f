// A file that is being written, from its beginning to its end.
#ifndef CKPTD_COMMON_EXPORT_OUTPUT_FILE_H_
#define CKPTD_COMMON_EXPORT_OUTPUT_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/source/storage.h"

namespace ckptd {

// Not thread-safe. Errors name the path, and say what to try where the disk is full.
class OutputFile {
 public:
  // A new file. Errors: also AlreadyExists where there is one.
  static absl::StatusOr<OutputFile> Create(const std::string& path);

  // Where the next bytes go.
  uint64_t size() const { return size_; }

  absl::Status Append(std::span<const std::byte> bytes);
  absl::Status Append(std::string_view text);
  // Leaves zeros, which WriteAt may replace later.
  absl::Status Skip(uint64_t bytes);
  absl::Status WriteAt(uint64_t offset, std::string_view text);
  // Bytes of another file, copied by the kernel where it can.
  absl::Status AppendFrom(const ReadableObject& object, uint64_t offset, uint64_t bytes);

  // Writes what is left to storage, and waits for that. Nothing else may follow.
  absl::Status Finish();

 private:
  OutputFile(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status Flush();
  absl::Status Write(uint64_t offset, std::span<const std::byte> bytes);
  void StartWriteback();
  absl::StatusOr<uint64_t> CopyInKernel(int from, uint64_t offset, uint64_t bytes);
  absl::Status Failed(int error) const;

  UniqueFd fd_;
  std::string path_;
  uint64_t size_ = 0;
  uint64_t on_its_way_ = 0;  // up to here the kernel was told to write
  std::vector<std::byte> small_;  // the end, not written yet
  bool kernel_copies_ = true;
};

}  // namespace ckptd

#endif  // CKPTD_COMMON_EXPORT_OUTPUT_FILE_H_
