// The seam between a transfer and storage: brings blocks of source files into
// reach of this thread's caches.
#ifndef CKPTD_SERVER_TRANSFER_BLOCK_READER_H_
#define CKPTD_SERVER_TRANSFER_BLOCK_READER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "common/checkpoint/index.h"
#include "server/transfer/schedule.h"

namespace ckptd {

// One open source file.
struct OpenSource {
  UniqueFd fd;
  Mapping mapping;                          // whole file, read-only; may be invalid
  std::atomic<uint64_t> read_ahead_to = 0;  // bytes asked of the kernel so far
  bool in_memory = false;                   // of a file system that is memory
};

// The files of a transfer: each is opened when its first item comes up and
// closed after its last one, so a source may have more files than descriptors.
// Thread-safe. The index must outlive it.
class SourceFiles {
 public:
  SourceFiles(const CheckpointIndex& index, std::span<const WorkItem> items, bool map);

  // Errors: those of OpenForReading; Aborted SOURCE_CHANGED if the file is
  // shorter than, or not the one, in the index.
  absl::StatusOr<std::shared_ptr<OpenSource>> Acquire(uint32_t file);
  // Once per item, after its last block.
  void ItemDone(uint32_t file);

  const std::string& path(uint32_t file) const { return index_.files[file].path; }

 private:
  struct Slot {
    Mutex mutex;
    std::shared_ptr<OpenSource> open ABSL_GUARDED_BY(mutex);
    uint64_t items_left ABSL_GUARDED_BY(mutex) = 0;
  };

  const CheckpointIndex& index_;
  const bool map_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

// Largest block that one Use call may ask for; also the size of the buffer that
// each reader owns. Stays in the second-level cache.
inline constexpr size_t kReadBlockBytes = 256 << 10;

// One per thread; not thread-safe.
class BlockReader {
 public:
  explicit BlockReader(SourceFiles& files)
      : files_(files), buffer_(std::make_unique_for_overwrite<std::byte[]>(kReadBlockBytes)) {}

  // Turns to an item: opens its file, chooses how to read it, and has the
  // kernel read ahead when it is not in the page cache.
  absl::Status Begin(const WorkItem& item);

  // Calls use(data) with the bytes [offset, offset + bytes) of the file, which
  // lie in the item; bytes <= kReadBlockBytes. `data` is valid during the call
  // and may be a mapping, so `use` must obey the rules of RunGuarded. Errors:
  // those of PreadFull; `use` may then have run in part.
  absl::Status Use(uint64_t offset, size_t bytes,
                   absl::FunctionRef<void(std::span<const std::byte>)> use);

  void End();

 private:
  SourceFiles& files_;
  std::unique_ptr<std::byte[]> buffer_;
  std::shared_ptr<OpenSource> source_;
  uint32_t file_ = 0;
  bool mapped_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_BLOCK_READER_H_
