#include "common/export/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr mode_t kMode = 0666;  // the kernel applies the umask
constexpr size_t kSmallBytes = size_t{1} << 20;
constexpr uint64_t kTinyBytes = uint64_t{64} << 10;  // many of them are written together
constexpr uint64_t kCopyBytes = uint64_t{8} << 20;
// Storage works while the rest is still read.
constexpr uint64_t kWritebackBytes = uint64_t{32} << 20;

}  // namespace

absl::Status OutputFile::Failed(int error) const {
  absl::Status status = ErrnoStatus(error, "writing " + path_);
  if (error != ENOSPC && error != EDQUOT) return WithFact(status, "file", path_);
  return MakeError(status.code(), ReasonOf(status),
                   MessageOf(status) + "; make room there, or name a place that has some",
                   {{"file", path_}});
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode));
  if (!fd.valid()) return WithFact(ErrnoStatus(errno, "creating " + path), "file", path);
  return OutputFile(std::move(fd), path);
}

absl::Status OutputFile::Write(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed(errno);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Flush() {
  CKPTD_RETURN_IF_ERROR(Write(size_ - small_.size(), small_));
  small_.clear();
  return absl::OkStatus();
}

void OutputFile::StartWriteback() {
  if (size_ - on_its_way_ < kWritebackBytes) return;
  // A hint alone: what fails here fails again where it is waited for.
  (void)::sync_file_range(fd_.get(), static_cast<off_t>(on_its_way_),
                          static_cast<off_t>(size_ - on_its_way_), SYNC_FILE_RANGE_WRITE);
  on_its_way_ = size_;
}

absl::Status OutputFile::Append(std::span<const std::byte> bytes) {
  if (small_.size() + bytes.size() > kSmallBytes) CKPTD_RETURN_IF_ERROR(Flush());
  if (bytes.size() > kSmallBytes) {
    CKPTD_RETURN_IF_ERROR(Write(size_, bytes));
  } else {
    small_.insert(small_.end(), bytes.begin(), bytes.end());
  }
  size_ += bytes.size();
  StartWriteback();
  return absl::OkStatus();
}

absl::Status OutputFile::Append(std::string_view text) {
  return Append(std::as_bytes(std::span(text.data(), text.size())));
}

absl::Status OutputFile::Skip(uint64_t bytes) {
  CKPTD_RETURN_IF_ERROR(Flush());
  size_ += bytes;
  return absl::OkStatus();
}

absl::Status OutputFile::WriteAt(uint64_t offset, std::string_view text) {
  const uint64_t written = size_ - small_.size();
  if (offset >= written && offset - written + text.size() <= small_.size()) {
    std::memcpy(small_.data() + (offset - written), text.data(), text.size());
    return absl::OkStatus();
  }
  CKPTD_RETURN_IF_ERROR(Flush());
  return Write(offset, std::as_bytes(std::span(text.data(), text.size())));
}

// How many bytes it copied: 0 where it cannot copy between these files.
absl::StatusOr<uint64_t> OutputFile::CopyInKernel(int from, uint64_t offset, uint64_t bytes) {
  auto in = static_cast<off64_t>(offset);
  auto out = static_cast<off64_t>(size_);
  for (;;) {
    const ssize_t n =
        ::copy_file_range(from, &in, fd_.get(), &out, static_cast<size_t>(bytes), 0);
    if (n >= 0) return static_cast<uint64_t>(n);
    if (errno == EINTR) continue;
    if (errno == ENOSPC || errno == EDQUOT || errno == EIO || errno == EFBIG) return Failed(errno);
    return uint64_t{0};
  }
}

absl::Status OutputFile::AppendFrom(const ReadableObject& object, uint64_t offset,
                                    uint64_t bytes) {
  std::vector<std::byte> block;
  if (bytes <= kTinyBytes) {
    block.resize(static_cast<size_t>(bytes));
    CKPTD_RETURN_IF_ERROR(object.ReadAt(offset, block));
    return Append(block);
  }
  CKPTD_RETURN_IF_ERROR(Flush());
  while (bytes > 0) {
    uint64_t n = std::min(bytes, kCopyBytes);
    if (kernel_copies_ && object.fd() >= 0) {
      CKPTD_ASSIGN_OR_RETURN(n, CopyInKernel(object.fd(), offset, n));
      kernel_copies_ = n > 0;  // nothing also where the file ends, which reading then says
      if (n == 0) continue;
    } else {
      block.resize(static_cast<size_t>(n));
      CKPTD_RETURN_IF_ERROR(object.ReadAt(offset, block));
      CKPTD_RETURN_IF_ERROR(Write(size_, block));
    }
    size_ += n;
    offset += n;
    bytes -= n;
    StartWriteback();
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Finish() {
  CKPTD_RETURN_IF_ERROR(Flush());
  // A file that ends with what was skipped has its length, too.
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) return Failed(errno);
  if (::fsync(fd_.get()) != 0) return Failed(errno);
  return ::close(fd_.Release()) == 0 ? absl::OkStatus() : Failed(errno);
}

}  // namespace ckptd
