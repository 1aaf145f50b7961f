#include "server/rpc/file_passing.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <climits>
#include <cstring>
#include <memory>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr std::string_view kMagic = "CKPTDFDS";
constexpr size_t kMostJobBytes = 1024;
constexpr size_t kMostPathBytes = PATH_MAX;  // with its NUL

// Little-endian, behind the magic.
struct Numbers {
  uint32_t files = 0;
  uint32_t job_bytes = 0;
  uint32_t text_bytes = 0;  // of the job and all paths
  uint32_t reserved[3] = {};
};
static_assert(kMagic.size() + sizeof(Numbers) == FilePassing::kHeaderBytes);

absl::Status Refused(std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   fmt::format("passing files to the daemon: {}; pass absolute paths and one "
                               "descriptor of a file, open for reading, for each",
                               why));
}

// A descriptor of O_PATH shows no right to read. The file itself is not asked, as its storage may
// hang: readers find out whether it is a regular one.
bool IsReadable(const UniqueFd& fd) {
  const int flags = ::fcntl(fd.get(), F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0 && (flags & O_ACCMODE) != O_WRONLY;
}

}  // namespace

bool FilePassing::IsHeader(std::string_view first_bytes) { return first_bytes.starts_with(kMagic); }

absl::StatusOr<FilePassing> FilePassing::Begin(std::string_view header) {
  Numbers numbers;
  if (header.size() != kHeaderBytes || !IsHeader(header)) return Refused("its header is malformed");
  std::memcpy(&numbers, header.data() + kMagic.size(), sizeof(numbers));
  const bool possible = numbers.files > 0 && numbers.files <= kMostFiles &&
                        numbers.text_bytes <= kMostTextBytes &&
                        numbers.job_bytes <= kMostJobBytes &&
                        numbers.job_bytes < numbers.text_bytes &&
                        numbers.text_bytes - numbers.job_bytes <= numbers.files * kMostPathBytes;
  if (!possible) {
    return Refused(fmt::format("{} files with {} bytes of paths are not taken, at most {} and {} "
                               "are, with {} bytes for each path",
                               numbers.files, numbers.text_bytes, kMostFiles, kMostTextBytes,
                               kMostPathBytes));
  }
  FilePassing out;
  out.files_ = numbers.files;
  out.job_bytes_ = numbers.job_bytes;
  out.text_bytes_ = numbers.text_bytes;
  return out;
}

absl::Status FilePassing::Add(std::span<const std::byte> bytes, std::vector<UniqueFd> fds) {
  if (bytes.size() > bytes_left() || fds.size() > files_left()) {
    return Refused("more came than its header says");
  }
  text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (UniqueFd& fd : fds) fds_.push_back(std::move(fd));
  if (bytes_left() == 0 && files_left() > 0) {
    return Refused(fmt::format("{} descriptors did not come with the paths", files_left()));
  }
  return absl::OkStatus();
}

absl::StatusOr<PassedFiles::Files> FilePassing::Take() {
  PassedFiles::Files out;
  size_t at = job_bytes_;
  for (UniqueFd& fd : fds_) {
    const size_t end = text_.find('\0', at);
    if (end == std::string::npos) return Refused("it names fewer paths than descriptors");
    const std::string path = text_.substr(at, end - at);
    at = end + 1;
    if (!path.starts_with('/') || path.size() >= kMostPathBytes) {
      return Refused("a path is not absolute, or too long");
    }
    if (!IsReadable(fd)) return Refused(fmt::format("that of {} is not open for reading", path));
    if (!out.emplace(path, std::make_shared<const UniqueFd>(std::move(fd))).second) {
      return Refused(fmt::format("{} comes twice", path));
    }
  }
  if (at != text_.size()) return Refused("it names more paths than descriptors");
  return out;
}

}  // namespace ckptd
