#include "common/base/posix.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "common/base/reasons.h"
#include "common/base/status.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

namespace ckptd {

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Mapping::Reset() {
  if (address_ != nullptr) ::munmap(std::exchange(address_, nullptr), std::exchange(bytes_, 0));
}

UniqueFd NewMemfd(const char* name) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd fd(::memfd_create(name, kFlags | MFD_NOEXEC_SEAL));
  // Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
  if (!fd.valid() && errno == EINVAL) fd = UniqueFd(::memfd_create(name, kFlags));
  return fd;
}

bool IsNamedFileInMemory(int fd) {
  struct stat info = {};
  struct statfs system = {};
  return ::fstat(fd, &info) == 0 && ::fstatfs(fd, &system) == 0 && S_ISREG(info.st_mode) &&
         info.st_nlink > 0 && info.st_uid == ::geteuid() && system.f_type == TMPFS_MAGIC;
}

absl::StatusOr<UniqueFd> DuplicateFd(int fd, const std::string& doing) {
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return ErrnoStatus(errno, doing);
}

absl::StatusOr<UniqueFd> OpenForReading(const std::string& path) {
  // O_NONBLOCK, because opening a FIFO must not wait for a writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const absl::Status status = ErrnoStatus(errno, "opening " + path);
    if (status.code() != absl::StatusCode::kPermissionDenied) return status;
    return MakeError(status.code(), ReasonOf(status),
                     MessageOf(status) + "; let that user read it, and enter the folders above",
                     {{"file", path}});
  }
  return UniqueFd(fd);
}

absl::Status PreadFull(int fd, uint64_t offset, std::span<std::byte> out,
                       const std::string& path) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n = ::pread(fd, out.data() + done, out.size() - done,
                              static_cast<off_t>(offset + done));
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "reading " + path);
    return MakeError(absl::StatusCode::kDataLoss, reason::kSourceChanged,
                     "reading " + path + ": the file ends at byte " +
                         std::to_string(offset + done) +
                         ", it was longer when it was opened; restore it and load again",
                     {{"file", path}});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, size_t limit) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenForReading(path));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "reading the size of " + path);
  if (!S_ISREG(info.st_mode)) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     "reading " + path + ": not a regular file; name a file", {{"file", path}});
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes > limit) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kSourceInvalid,
                     "reading " + path + ": " + std::to_string(bytes) + " bytes, more than the " +
                         std::to_string(limit) + " allowed here",
                     {{"file", path}});
  }
  std::string text(bytes, '\0');
  CKPTD_RETURN_IF_ERROR(
      PreadFull(fd.get(), 0, std::as_writable_bytes(std::span(text)), path));
  return text;
}

}  // namespace ckptd
