#include "server/transfer/source_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/transfer/sigbus_guard.h"

namespace ckptd {
namespace {

// Bytes that the kernel may read ahead for us at a time. More slows disks down.
constexpr uint64_t kReadAheadBytes = 16 << 20;

absl::Status Changed(const SourceFile& file, std::string_view how) {
  return MakeError(
      absl::StatusCode::kAborted, reason::kSourceChanged,
      fmt::format("reading {}: {}; let the writer finish and load again", file.path, how),
      {{"file", file.path}});
}

absl::Status CheckIdentity(int fd, const SourceFile& file) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return ErrnoStatus(errno, "reading the size of " + file.path);
  if (!S_ISREG(info.st_mode)) return Changed(file, "it is no longer a regular file");
  if (static_cast<uint64_t>(info.st_size) < file.bytes) {
    return Changed(file, fmt::format("it has {} bytes, its header was read when it had {}",
                                     info.st_size, file.bytes));
  }
  // An index made without identities has zeros there.
  if (file.inode != 0 && (info.st_ino != file.inode || info.st_dev != file.device)) {
    return Changed(file, "another file took its place after its header was read");
  }
  return absl::OkStatus();
}

// True if one byte at `offset` comes from the page cache without waiting.
bool CachedAt(int fd, uint64_t offset) {
  std::byte byte = {};
  const iovec part = {&byte, 1};
  return ::preadv2(fd, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}

// tmpfs refuses reads that must not wait, though its reads never wait.
bool InMemory(int fd) {
  struct statfs info = {};
  return ::fstatfs(fd, &info) == 0 && info.f_type == TMPFS_MAGIC;
}

// Opens the same file as `fd`, even if its name now belongs to another file. Invalid if its file
// system has no O_DIRECT.
UniqueFd OpenDirect(int fd) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
}

}  // namespace

void ReadAhead(OpenSource& source, uint64_t position) {
  const uint64_t until = position + kReadAheadBytes;
  uint64_t asked = source.read_ahead_to.load(std::memory_order_relaxed);
  // Reads ahead in quarters, so that the read-ahead window moves while it is consumed.
  if (asked > position && until - asked < kReadAheadBytes / 4) return;
  if (!source.read_ahead_to.compare_exchange_strong(asked, until)) return;
  const uint64_t from = std::max(asked, position);
  // This is a hint. If it is not supported, later reads wait.
  ::posix_fadvise(source.file.fd.get(), static_cast<off_t>(from), static_cast<off_t>(until - from),
                  POSIX_FADV_WILLNEED);
}

SourceFiles::SourceFiles(const CheckpointIndex& index, std::span<const WorkItem> items,
                         IoMode io_mode)
    : index_(index), io_mode_(io_mode), mappable_(Allows(IoMode::kMap) && SigbusGuardInForce()) {
  for (size_t i = 0; i < index.files.size(); ++i) slots_.push_back(std::make_unique<Slot>());
  Expect(items);
}

void SourceFiles::Expect(std::span<const WorkItem> items) {
  for (const WorkItem& item : items) {
    Slot& slot = *slots_[item.file];
    MutexLock lock(slot.mutex);
    ++slot.items_left;
  }
}

absl::StatusOr<std::shared_ptr<OpenSource>> SourceFiles::Acquire(uint32_t file) {
  Slot& slot = *slots_[file];
  MutexLock lock(slot.mutex);
  if (slot.open != nullptr) return slot.open;
  const SourceFile& wanted = index_.files[file];
  auto source = std::make_shared<OpenSource>();
  CKPTD_ASSIGN_OR_RETURN(source->file, OpenSourceFile(wanted.path));
  const int fd = source->file.fd.get();
  CKPTD_RETURN_IF_ERROR(CheckIdentity(fd, wanted));
  const bool borrowed = source->file.memory.has_value();  // the file itself has a hole there
  if (mappable_ && !borrowed) {
    void* address = ::mmap(nullptr, wanted.bytes, PROT_READ, MAP_SHARED, fd, 0);
    // Without a mapping the file is read through the buffer.
    if (address != MAP_FAILED) source->mapping = Mapping(address, wanted.bytes);
  }
  source->in_memory = borrowed || InMemory(fd);
  if (Allows(IoMode::kDirect) && !borrowed) source->direct = OpenDirect(fd);
  slot.open = source;
  return source;
}

void SourceFiles::ItemDone(uint32_t file) {
  std::shared_ptr<OpenSource> closing;  // destroyed after the lock is released
  Slot& slot = *slots_[file];
  MutexLock lock(slot.mutex);
  if (--slot.items_left == 0) closing = std::move(slot.open);
}

bool SourceFiles::Cached(const OpenSource& source, const WorkItem& item) {
  const int fd = source.file.fd.get();
  return source.in_memory || (CachedAt(fd, item.begin) && CachedAt(fd, item.end - 1) &&
                              CachedAt(fd, item.begin + (item.end - item.begin) / 2));
}

IoMode SourceFiles::ChooseIoMode(const OpenSource& source, const WorkItem& item) const {
  const bool mapped = source.mapping.valid();
  const bool direct = source.direct.valid();
  if (io_mode_ == IoMode::kMap) return mapped ? IoMode::kMap : IoMode::kBuffer;
  if (io_mode_ == IoMode::kDirect) return direct ? IoMode::kDirect : IoMode::kBuffer;
  if (io_mode_ == IoMode::kBuffer) return IoMode::kBuffer;
  if (Cached(source, item)) return mapped ? IoMode::kMap : IoMode::kBuffer;
  return direct ? IoMode::kDirect : IoMode::kBuffer;
}

}  // namespace ckptd
