#include "server/memory/host/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Opens a new open file description of the same memory.
absl::StatusOr<UniqueFd> Reopen(int fd, int flags) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  UniqueFd reopened(::open(path.c_str(), flags | O_CLOEXEC));
  if (!reopened.valid()) {
    return SegmentError(errno, "re-opening " + path + " (is /proc mounted here?)");
  }
  return reopened;
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
                                                                 const PopulateOptions& options) {
  if (bytes == 0 || bytes % kHugePageBytes != 0) {
    return absl::InternalError(fmt::format("a memory segment of {} bytes", bytes));
  }
  CKPTD_ASSIGN_OR_RETURN(UniqueFd original, MakeMemfd(bytes));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd check, Reopen(original.get(), O_RDWR));
  const MapSlabOptions map = {.mode = MapMode::kSharedWritable, .populate = false};
  const int fds[] = {original.get()};
  const uint64_t sizes[] = {bytes};
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, MapSlab(fds, sizes, map));
  CKPTD_ASSIGN_OR_RETURN(const uint64_t huge,
                         Populate(original.get(), mapping.span(), options));
  std::unique_ptr<HostSegment> segment(
      new HostSegment(id, std::move(original), std::move(check), std::move(mapping)));
  segment->huge_bytes_ = huge;
  return segment;
}

absl::StatusOr<std::unique_ptr<HostSegment>> HostSegment::Adopt(uint64_t id, uint64_t bytes,
                                                                UniqueFd original) {
  const int seals = ::fcntl(original.get(), F_GET_SEALS);
  struct stat info = {};
  if (seals < 0 || ::fstat(original.get(), &info) != 0) {
    return SegmentError(errno, "looking at a kept memory descriptor");
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if ((seals & kSizeSeals) != kSizeSeals || size < bytes || size % kHugePageBytes != 0) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kDigestMismatch,
                     fmt::format("taking kept memory over: a descriptor of {} bytes is no memory of "
                                 "ckptd's of {} bytes or more",
                                 size, bytes));
  }
  CKPTD_ASSIGN_OR_RETURN(UniqueFd check, Reopen(original.get(), O_RDWR));
  const bool sealed = (seals & kContentSeals) == kContentSeals;
  const MapSlabOptions map = {
      .mode = sealed ? MapMode::kSharedReadOnly : MapMode::kSharedWritable, .populate = false};
  const int fds[] = {original.get()};
  const uint64_t sizes[] = {size};
  CKPTD_ASSIGN_OR_RETURN(Mapping mapping, MapSlab(fds, sizes, map));
  std::unique_ptr<HostSegment> segment(
      new HostSegment(id, std::move(original), std::move(check), std::move(mapping)));
  segment->sealed_ = sealed;
  return segment;
}

absl::Status HostSegment::Seal() {
  if (sealed_) return absl::OkStatus();
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

bool OwnershipCheckWorks() {
  absl::StatusOr<UniqueFd> original = MakeMemfd(kHugePageBytes);
  if (!original.ok()) return false;
  absl::StatusOr<UniqueFd> check = Reopen(original->get(), O_RDWR);
  if (!check.ok()) return false;
  if (!IsOnlyUser(check->get())) return false;
  absl::StatusOr<UniqueFd> client = Reopen(original->get(), O_RDONLY);
  if (!client.ok() || IsOnlyUser(check->get())) return false;
  void* address = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, client->get(), 0);
  if (address == MAP_FAILED) return false;
  Mapping mapping(address, 4096);
  client->Reset();
  if (IsOnlyUser(check->get())) return false;  // a mapping alone must count as a user
  mapping.Reset();
  return IsOnlyUser(check->get());
}

}  // namespace ckptd
