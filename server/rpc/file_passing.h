// The part of the fd socket by which a client passes descriptors of files to the daemon. The
// protocol is in proto/README.md.
#ifndef CKPTD_SERVER_RPC_FILE_PASSING_H_
#define CKPTD_SERVER_RPC_FILE_PASSING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/posix.h"
#include "common/source/passed_files.h"

namespace ckptd {

// One client's files: a header, then the paths, each with a NUL behind it, and with them one
// descriptor for each, in the same order. For one thread.
class FilePassing {
 public:
  static constexpr size_t kHeaderBytes = 32;  // as long as a token, which begins with no magic
  static constexpr size_t kMostFiles = 4096;
  static constexpr size_t kMostTextBytes = size_t{4} << 20;  // of job and paths

  static bool IsHeader(std::string_view first_bytes);
  // Errors: InvalidArgument INVALID_REQUEST.
  static absl::StatusOr<FilePassing> Begin(std::string_view header);

  // Takes what has come. Errors: InvalidArgument INVALID_REQUEST for what is not as the header
  // says.
  absl::Status Add(std::span<const std::byte> bytes, std::vector<UniqueFd> fds);
  // How many bytes and descriptors are still to come.
  size_t bytes_left() const { return text_bytes_ - text_.size(); }
  size_t files_left() const { return files_ - fds_.size(); }
  bool complete() const { return bytes_left() == 0 && files_left() == 0; }
  size_t files() const { return files_; }

  // Once it is complete. The job as JobFrom takes it.
  std::string job_key() const { return text_.substr(0, job_bytes_); }
  // Errors: InvalidArgument INVALID_REQUEST for a path that is not absolute, too long or comes
  // twice, and for a descriptor that is not open for reading.
  absl::StatusOr<PassedFiles::Files> Take();

 private:
  size_t files_ = 0;
  size_t job_bytes_ = 0;
  size_t text_bytes_ = 0;
  std::string text_;  // the job's key, then the paths
  std::vector<UniqueFd> fds_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_FILE_PASSING_H_
