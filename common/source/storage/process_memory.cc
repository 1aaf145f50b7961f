#include "common/source/storage/process_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are read as they lie");

constexpr std::string_view kMagic = "CKPTDMEM";
constexpr std::string_view kProc = "/proc/";
constexpr uint64_t kStartBytes = 16;  // magic and number of ranges
constexpr uint64_t kRangeBytes = 16;
constexpr uint64_t kLastAddress = uint64_t{1} << 62;
constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

absl::Status Invalid(const std::string& path, std::string_view why) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kSourceInvalid,
                   fmt::format("reading {}: it offers memory of a process, but {}; load it from "
                               "the process that made it, with a client of this version",
                               path, why),
                   {{"file", path}});
}

absl::Status Unreadable(const std::string& path, const std::string& process, int error) {
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kSourceUnreadable,
                   fmt::format("reading {}: the memory of process {} cannot be read ({}); run "
                               "daemon and trainer as one user, or have the trainer copy what it "
                               "offers (CKPTD_STAGE_DIR)",
                               path, process, std::strerror(error)),
                   {{"file", path}});
}

// "123" of /proc/123/fd/4; empty for any other path.
std::string ProcessOf(std::string_view path) {
  const auto number = [&path] {
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), value);
    if (error != std::errc()) return std::string();
    path.remove_prefix(static_cast<size_t>(end - path.data()));
    return std::to_string(value);
  };
  if (!path.starts_with(kProc)) return {};
  path.remove_prefix(kProc.size());
  const std::string process = number();
  if (process.empty() || !path.starts_with("/fd/")) return {};
  path.remove_prefix(4);
  return !number().empty() && path.empty() ? process : std::string();
}

// A user who may read the process may have its memory; but did the process put the memfd there?
// `memory`
// is the process's, open: asked after that, the rest is of the same process.
absl::Status CheckOffered(int fd, int memory, const std::string& path) {
  struct stat file = {};
  struct stat named = {};
  struct stat process = {};
  if (!IsSealedMemory(fd)) return Invalid(path, "it is not sealed");
  if (::fstat(fd, &file) != 0 || ::fstat(memory, &process) != 0 ||
      ::stat(path.c_str(), &named) != 0) {
    return ErrnoStatus(errno, "reading " + path);
  }
  if (named.st_ino != file.st_ino || named.st_dev != file.st_dev) {
    return Invalid(path, "it is no longer the process's");
  }
  // The proc folder of a program with more rights than its user belongs to root.
  return file.st_uid == process.st_uid ? absl::OkStatus()
                                       : Invalid(path, "it belongs to another user than the process");
}

uint64_t NumberAt(std::span<const std::byte> bytes, size_t at) {
  uint64_t value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// Whether a file begins as one of these does.
bool OffersMemory(int fd, const std::string& path) {
  std::array<char, kMagic.size()> start = {};
  return path.starts_with(kProc) && ::pread(fd, start.data(), start.size(), 0) == kMagic.size() &&
         std::string_view(start.data(), start.size()) == kMagic;
}

// Where in a process some of the data is.
struct MemoryRange {
  uint64_t address = 0;
  uint64_t bytes = 0;
  uint64_t offset = 0;  // in the file
};

// The file that offers memory, up to its data; from there on the memory that it names.
class MemoryObject final : public ReadableObject {
 public:
  // `process` is in the path of `file`, which is open.
  static absl::StatusOr<std::shared_ptr<const ReadableObject>> Make(UniqueFd fd, SourceFile identity,
                                                                    const std::string& process);

  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const override;
  uint64_t begin() const override { return header_at_; }
  std::optional<uint64_t> data_begin() const override { return data_at_; }
  bool in_memory() const override { return true; }

 private:
  MemoryObject(UniqueFd fd, SourceFile identity)
      : ReadableObject(std::move(identity)), fd_(std::move(fd)) {}

  absl::Status ReadRanges();
  // By their ends: devices' memory, among others, is not for other processes.
  absl::Status CheckReadable(const std::string& process) const;
  absl::Status ReadMemory(uint64_t offset, std::span<std::byte> out) const;

  const UniqueFd fd_;
  UniqueFd memory_;  // of the process, whoever has its number later
  std::vector<MemoryRange> ranges_;
  uint64_t header_at_ = 0;
  uint64_t data_at_ = 0;
};

absl::StatusOr<std::shared_ptr<const ReadableObject>> MemoryObject::Make(
    UniqueFd fd, SourceFile identity, const std::string& process) {
  // The constructor is private.
  std::shared_ptr<MemoryObject> out(new MemoryObject(std::move(fd), std::move(identity)));
  const std::string memory = fmt::format("{}{}/mem", kProc, process);
  out->memory_ = UniqueFd(::open(memory.c_str(), O_RDONLY | O_CLOEXEC));
  if (!out->memory_.valid()) return Unreadable(out->path(), process, errno);
  CKPTD_RETURN_IF_ERROR(CheckOffered(out->fd_.get(), out->memory_.get(), out->path()));
  CKPTD_RETURN_IF_ERROR(out->ReadRanges());
  CKPTD_RETURN_IF_ERROR(out->CheckReadable(process));
  return out;
}

absl::Status MemoryObject::CheckReadable(const std::string& process) const {
  std::byte byte = {};
  for (const MemoryRange& range : ranges_) {
    for (const uint64_t at : {range.address, range.address + range.bytes - 1}) {
      errno = ESRCH;  // what no bytes mean
      if (::pread(memory_.get(), &byte, 1, static_cast<off_t>(at)) == 1) continue;
      return Unreadable(path(), process, errno);
    }
  }
  return absl::OkStatus();
}

absl::Status MemoryObject::ReadRanges() {
  std::array<std::byte, kStartBytes> start = {};
  CKPTD_RETURN_IF_ERROR(PreadFull(fd_.get(), 0, start, path()));
  const uint64_t count = NumberAt(start, kMagic.size());
  if (count > kMaxMemoryRanges) return Invalid(path(), fmt::format("in {} ranges", count));
  header_at_ = kStartBytes + count * kRangeBytes;
  if (header_at_ > size()) return Invalid(path(), "it ends among its ranges");
  std::vector<std::byte> table(count * kRangeBytes);
  CKPTD_RETURN_IF_ERROR(PreadFull(fd_.get(), kStartBytes, table, path()));
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    MemoryRange range{NumberAt(table, i * kRangeBytes), NumberAt(table, i * kRangeBytes + 8), bytes};
    if (range.bytes == 0 || range.bytes > size() || range.address > kLastAddress) {
      return Invalid(path(), fmt::format("range {} has {} bytes at {:#x}", i, range.bytes,
                                         range.address));
    }
    bytes += range.bytes;  // cannot wrap: neither is more than the file has
    if (bytes > size()) return Invalid(path(), "its ranges are longer than it says it is");
    ranges_.push_back(range);
  }
  data_at_ = size() - bytes;
  if (data_at_ < header_at_) return Invalid(path(), "its ranges are longer than it says it is");
  for (MemoryRange& range : ranges_) range.offset += data_at_;
  return absl::OkStatus();
}

absl::Status MemoryObject::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  if (offset >= data_at_) return ReadMemory(offset, out);
  const auto before = static_cast<size_t>(std::min<uint64_t>(out.size(), data_at_ - offset));
  CKPTD_RETURN_IF_ERROR(PreadFull(fd_.get(), offset, out.first(before), path()));
  return ReadMemory(data_at_, out.subspan(before));
}

absl::Status MemoryObject::ReadMemory(uint64_t offset, std::span<std::byte> out) const {
  const auto after = std::upper_bound(
      ranges_.begin(), ranges_.end(), offset,
      [](uint64_t wanted, const MemoryRange& range) { return wanted < range.offset; });
  auto range = after == ranges_.begin() ? ranges_.end() : std::prev(after);
  while (!out.empty()) {
    if (range == ranges_.end() || offset >= range->offset + range->bytes) {
      return Invalid(path(), fmt::format("not that of its byte {}", offset));
    }
    const uint64_t into = offset - range->offset;
    const size_t part = std::min<uint64_t>(out.size(), range->bytes - into);
    CKPTD_RETURN_IF_ERROR(
        PreadFull(memory_.get(), range->address + into, out.first(part), path()));
    out = out.subspan(part);
    offset += part;
    ++range;
  }
  return absl::OkStatus();
}

}  // namespace

bool IsSealedMemory(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

absl::StatusOr<std::shared_ptr<const ReadableObject>> ProcessMemoryStorage::Open(
    const std::string& path) const {
  CKPTD_ASSIGN_OR_RETURN(OpenFile file, OpenRegular(path));
  if (!OffersMemory(file.fd.get(), path)) return MakeObject(std::move(file));
  const std::string process = ProcessOf(path);
  if (process.empty()) return Invalid(path, "its path is not /proc/PID/fd/N");
  return MemoryObject::Make(std::move(file.fd), std::move(file.identity), process);
}

}  // namespace ckptd
