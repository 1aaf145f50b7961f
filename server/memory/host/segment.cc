#include "server/memory/host/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>

#include "common/base/reasons.h"
#include "common/base/slab_mapping.h"
#include "common/base/status.h"
#include "fmt/format.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace ckptd {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kContentSeals = F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
constexpr mode_t kWriteBits = S_IWUSR | S_IWGRP | S_IWOTH;
constexpr mode_t kModeBits = S_IRWXU | S_IRWXG | S_IRWXO;
constexpr int kReopenAttempts = 1000;

absl::Status SegmentError(int error, const std::string& doing) {
  const absl::Status status = ErrnoStatus(error, doing);
  if (status.code() != absl::StatusCode::kResourceExhausted) {
    return absl::InternalError(MessageOf(status));
  }
  if (error == EFBIG) {
    return WithContext(status, "making host memory (raise the limit of file sizes, ulimit -f)");
  }
  return WithContext(status, "making host memory (see ulimit -n and free memory)");
}

absl::StatusOr<UniqueFd> MakeMemfd(uint64_t bytes) {
  UniqueFd fd = NewMemfd("ckptd");
  if (!fd.valid()) return SegmentError(errno, "memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return SegmentError(errno, fmt::format("sizing a memfd to {} bytes", bytes));
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return SegmentError(errno, "sealing the size of a memfd");
  }
  return fd;
}

// It goes with this process; if that is killed, with the next one (SlabFolder::Open).
std::string NewPath(const std::string& folder) {
  static std::atomic<uint64_t> next = 0;
  return fmt::format("{}/segment-{}-{}", folder, ::getpid(), next++);
}

// A file with all its memory. `path` is set once it has that name.
absl::StatusOr<UniqueFd> MakeFile(const std::string& folder, uint64_t bytes, std::string& path) {
  const std::string name = NewPath(folder);
  UniqueFd fd(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return SegmentError(errno, "making " + name);
  path = name;
  // Touching pages that the folder has no room for would raise SIGBUS.
  if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) == 0) return fd;
  const int error = errno;
  ::unlink(name.c_str());
  if (error != ENOSPC) return SegmentError(error, fmt::format("sizing {} to {} bytes", name, bytes));
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                   fmt::format("making host memory: the slab folder {} has no room for {} bytes; "
                               "unload checkpoints, or make it larger (sizeLimit of the emptyDir, "
                               "size= of the tmpfs)",
                               folder, bytes));
}

// Gives the memory's owner the permission that `flags` need, and takes none away.
bool AllowOwner(int fd, int flags) {
  const mode_t needed = (flags & O_ACCMODE) == O_RDONLY ? S_IRUSR : S_IRUSR | S_IWUSR;
  struct stat info = {};
  return ::fstat(fd, &info) == 0 && ::fchmod(fd, (info.st_mode & kModeBits) | needed) == 0;
}

// Opens a new open file description of the same memory. A client of our user may change the mode of
// the memory that it got, so the mode is mended. A client that does so all the time wins some
// rounds, hence the attempts.
absl::StatusOr<UniqueFd> Reopen(int fd, int flags) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  int error = 0;
  for (int attempt = 0; attempt < kReopenAttempts; ++attempt) {
    UniqueFd reopened(::open(path.c_str(), flags | O_CLOEXEC));
    if (reopened.valid()) return reopened;
    error = errno;
    if (error != EACCES || !AllowOwner(fd, flags)) break;
  }
  return SegmentError(error, "re-opening " + path + " (is /proc mounted here?)");
}

// True if the kernel grants a write lease on `fd`: then no other open file description that the
// kernel counts exists. The lease is given back at once.
bool IsOnlyUser(int fd) {
  // If anyone opens the memory at this moment, the kernel sends the lease's holder a signal.
  // SIGIO would kill the process by default; SIGURG is ignored by default. The kernel forgets
  // this setting with every lease.
  ::fcntl(fd, F_SETSIG, SIGURG);
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return false;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostSegment>> HostSegment::Create(uint64_t id, uint64_t bytes,
                                                                 const PopulateOptions& options,
                                                                 const std::string& folder) {
  if (bytes == 0 || bytes % kHugePageBytes != 0) {
    return absl::InternalError(fmt::format("a memory segment of {} bytes", bytes));
  }
  std::unique_ptr<HostSegment> segment(new HostSegment(id));
  CKPTD_ASSIGN_OR_RETURN(segment->original_, folder.empty() ? MakeMemfd(bytes)
                                                            : MakeFile(folder, bytes, segment->path_));
  CKPTD_RETURN_IF_ERROR(segment->OpenCheck());
  CKPTD_RETURN_IF_ERROR(segment->Map(bytes, MapMode::kSharedWritable));
  CKPTD_ASSIGN_OR_RETURN(segment->huge_bytes_, Populate(segment->original_.get(),
                                                        segment->mapping_.span(), options));
  return segment;
}

HostSegment::~HostSegment() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

absl::Status HostSegment::OpenCheck() {
  if (path_.empty()) {
    CKPTD_ASSIGN_OR_RETURN(check_, Reopen(original_.get(), O_RDWR));
  } else {
    CKPTD_ASSIGN_OR_RETURN(check_, DuplicateOriginal());
  }
  return absl::OkStatus();
}

absl::Status HostSegment::Map(uint64_t bytes, MapMode mode) {
  const int fds[] = {original_.get()};
  const uint64_t sizes[] = {bytes};
  CKPTD_ASSIGN_OR_RETURN(mapping_, MapSlab(fds, sizes, {.mode = mode, .populate = false}));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HostSegment>> HostSegment::Adopt(uint64_t id, uint64_t bytes,
                                                                UniqueFd original,
                                                                const std::string& folder) {
  const int seals = ::fcntl(original.get(), F_GET_SEALS);
  struct stat info = {};
  if (seals < 0 || ::fstat(original.get(), &info) != 0) {
    return SegmentError(errno, "looking at a kept memory descriptor");
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  const bool file = !folder.empty() && IsNamedFileInMemory(original.get());
  if ((!file && (seals & kSizeSeals) != kSizeSeals) || size < bytes || size % kHugePageBytes != 0) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                     fmt::format("taking kept memory over: a descriptor of {} bytes is no memory of "
                                 "ckptd's of {} bytes or more",
                                 size, bytes));
  }
  std::unique_ptr<HostSegment> segment(new HostSegment(id));
  segment->original_ = std::move(original);
  segment->sealed_ = file ? (info.st_mode & kWriteBits) == 0 : (seals & kContentSeals) == kContentSeals;
  if (file) {
    const std::string named = fmt::format("/proc/self/fd/{}", segment->original_.get());
    const std::string path = NewPath(folder);
    if (::linkat(AT_FDCWD, named.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      return SegmentError(errno, "naming kept memory " + path);
    }
    segment->path_ = path;
  }
  CKPTD_RETURN_IF_ERROR(segment->OpenCheck());
  CKPTD_RETURN_IF_ERROR(segment->Map(size, segment->sealed_ ? MapMode::kSharedReadOnly
                                                            : MapMode::kSharedWritable));
  return segment;
}

absl::Status HostSegment::Seal() {
  if (sealed_) return absl::OkStatus();
  if (!path_.empty()) {
    if (::fchmod(original_.get(), 0400) != 0) return SegmentError(errno, "sealing " + path_);
    sealed_ = true;
    return absl::OkStatus();
  }
  if (::fcntl(original_.get(), F_ADD_SEALS, kContentSeals) != 0) {
    return SegmentError(errno, "sealing a memory segment (kernel 5.1 or newer is needed)");
  }
  sealed_ = true;
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> HostSegment::OpenReadOnly() const {
  if (!sealed_) return absl::InternalError("handing out unsealed memory for reading");
  return Reopen(original_.get(), O_RDONLY);
}

absl::StatusOr<UniqueFd> HostSegment::OpenReadWrite() const {
  if (sealed_) return absl::InternalError("handing out sealed memory for writing");
  return Reopen(original_.get(), O_RDWR);
}

absl::StatusOr<UniqueFd> HostSegment::DuplicateOriginal() const {
  return DuplicateFd(original_.get(), "duplicating a memory descriptor");
}

bool HostSegment::HeldByOthers() const { return !IsOnlyUser(check_.get()); }

bool OwnershipCheckWorks(const std::string& folder) {
  const auto segment = HostSegment::Create(0, kHugePageBytes, {.huge_pages = false}, folder);
  if (!segment.ok() || (*segment)->HeldByOthers() || !(*segment)->Seal().ok()) return false;
  absl::StatusOr<UniqueFd> client = (*segment)->OpenReadOnly();
  if (!client.ok() || !(*segment)->HeldByOthers()) return false;
  void* address = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, client->get(), 0);
  if (address == MAP_FAILED) return false;
  Mapping mapping(address, 4096);
  client->Reset();
  if (!(*segment)->HeldByOthers()) return false;  // a mapping alone must count as a user
  mapping.Reset();
  return !(*segment)->HeldByOthers();
}

}  // namespace ckptd
