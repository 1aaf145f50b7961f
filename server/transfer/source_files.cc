#include "server/transfer/source_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/status.h"
#include "common/source/registry.h"
#include "server/transfer/sigbus_guard.h"

namespace ckptd {
namespace {

// Bytes that the kernel may read ahead for us at a time. More slows disks down.
constexpr uint64_t kReadAheadBytes = 16 << 20;
// An item counts as cached while no more than one part in so many is missing.
constexpr uint64_t kMayBeMissing = 16;

// The argument of cachestat(2) and its answer, as in Linux's uapi/linux/mman.h. Headers older than
// Linux 6.5 lack them.
struct CacheRange {
  uint64_t begin;
  uint64_t bytes;
};
struct CacheCounts {
  uint64_t cached_pages, dirty_pages, written_back_pages, evicted_pages, recently_evicted_pages;
};
constexpr long kCachestat = 451;  // of every architecture

// How many bytes the page cache holds in pages of the range, which is not empty. Nothing where the
// kernel is older than 6.5 or says it only to those who may write to the file, and on overlayfs:
// the pages there belong to the file beneath.
std::optional<uint64_t> CachedBytes(int fd, uint64_t begin, uint64_t bytes) {
  struct statfs system = {};
  if (::fstatfs(fd, &system) != 0 || system.f_type == OVERLAYFS_SUPER_MAGIC) return std::nullopt;
  const CacheRange range = {begin, bytes};
  CacheCounts counts = {};
  if (::syscall(kCachestat, fd, &range, &counts, 0) != 0) return std::nullopt;
  return counts.cached_pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

// True if one byte at `offset` comes from the page cache without waiting. A guess: the kernel begins
// to read the page that it lacks, and fast storage brings it before the answer is given.
bool CachedAt(int fd, uint64_t offset) {
  std::byte byte = {};
  const iovec part = {&byte, 1};
  return ::preadv2(fd, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}

// The very file that `fd` is, not what may have taken its name. Invalid where its file
// system knows no O_DIRECT.
UniqueFd OpenDirect(int fd) {
  const std::string path = fmt::format("/proc/self/fd/{}", fd);
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
}

}  // namespace

void ReadAhead(OpenSource& source, uint64_t position) {
  if (source.object->fd() < 0) return;
  const uint64_t until = position + kReadAheadBytes;
  uint64_t asked = source.read_ahead_to.load(std::memory_order_relaxed);
  // Reads ahead in quarters, so that the read-ahead window moves while it is consumed.
  if (asked > position && until - asked < kReadAheadBytes / 4) return;
  if (!source.read_ahead_to.compare_exchange_strong(asked, until)) return;
  const uint64_t from = std::max(asked, position);
  // A hint: where it is not supported, the reads below wait instead.
  ::posix_fadvise(source.object->fd(), static_cast<off_t>(from), static_cast<off_t>(until - from),
                  POSIX_FADV_WILLNEED);
}

SourceFiles::SourceFiles(const CheckpointIndex& index, std::span<const WorkItem> items,
                         IoMode io_mode, SourceAccess access)
    : index_(index),
      io_mode_(io_mode),
      access_(std::move(access)),
      mappable_(Allows(IoMode::kMap) && SigbusGuardInForce()) {
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
  CKPTD_ASSIGN_OR_RETURN(source->object, OpenIndexed(*StorageOf(wanted.path, access_), wanted));
  // Without a mapping the file is read through the buffer.
  if (mappable_) source->mapping = source->object->Map();
  // The kernel would read megabytes more for a cached item, which is mapped: the next item would
  // then count as cached, too.
  if (io_mode_ == IoMode::kAuto && source->mapping.valid()) {
    ::madvise(source->mapping.data(), source->mapping.bytes(), MADV_RANDOM);
  }
  source->in_memory = source->object->in_memory();
  const int fd = source->object->fd();
  if (Allows(IoMode::kDirect) && fd >= 0) source->direct = OpenDirect(fd);
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
  const int fd = source.object->fd();
  if (source.in_memory || fd < 0) return source.in_memory;
  const uint64_t bytes = item.end - item.begin;
  if (bytes == 0) return true;
  if (const auto cached = CachedBytes(fd, item.begin, bytes)) {
    return *cached >= bytes - bytes / kMayBeMissing;
  }
  return CachedAt(fd, item.begin) && CachedAt(fd, item.end - 1) &&
         CachedAt(fd, item.begin + (item.end - item.begin) / 2);
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
