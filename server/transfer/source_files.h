// Opens the source files of a transfer, each while it is needed.
#ifndef CKPTD_SERVER_TRANSFER_SOURCE_FILES_H_
#define CKPTD_SERVER_TRANSFER_SOURCE_FILES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/posix.h"
#include "common/source/access.h"
#include "common/source/index.h"
#include "common/source/storage.h"
#include "server/transfer/io_mode.h"
#include "server/transfer/schedule.h"

namespace ckptd {

// One open source file.
struct OpenSource {
  std::shared_ptr<const ReadableObject> object;
  UniqueFd direct;                          // the same, with O_DIRECT; may be invalid
  Mapping mapping;                          // all of it, read-only; may be invalid
  std::atomic<uint64_t> read_ahead_to = 0;  // bytes asked of the kernel so far
  bool in_memory = false;                   // as ReadableObject::in_memory
};

// Each file is opened for its first item and closed after its last one, so a source may have more
// files than a process may have descriptors. Each transfer owns one. Thread-safe. The index must
// outlive it.
class SourceFiles {
 public:
  SourceFiles(const CheckpointIndex& index, std::span<const WorkItem> items, IoMode io_mode,
              SourceAccess access = {});

  // Adds items. Call this before they are begun.
  void Expect(std::span<const WorkItem> items);

  // Errors: those of Storage::Open; Aborted SOURCE_CHANGED if the file is
  // shorter than, or not the one, in the index.
  absl::StatusOr<std::shared_ptr<OpenSource>> Acquire(uint32_t file);
  // Call this once per item, after its last block.
  void ItemDone(uint32_t file);

  // Whether the item is in the page cache: nearly all of it, or, where the kernel does not say how
  // much, a few of its pages. A wrong guess costs only time.
  static bool Cached(const OpenSource& source, const WorkItem& item);
  // How to read an item of the file now: kMap, kBuffer or kDirect.
  IoMode ChooseIoMode(const OpenSource& source, const WorkItem& item) const;

  // Whether the settings allow buffered reads.
  bool AllowsBuffer() const { return Allows(IoMode::kBuffer); }

  const std::string& path(uint32_t file) const { return index_.files[file].path; }
  // Of calls that no ReadableObject makes; null: nobody asks.
  StorageWatch* watch() const { return access_.watch.get(); }

 private:
  struct Slot {
    Mutex mutex;
    std::shared_ptr<OpenSource> open ABSL_GUARDED_BY(mutex);
    uint64_t items_left ABSL_GUARDED_BY(mutex) = 0;
  };

  bool Allows(IoMode io_mode) const { return io_mode_ == IoMode::kAuto || io_mode_ == io_mode; }

  const CheckpointIndex& index_;
  const IoMode io_mode_;
  const SourceAccess access_;
  // a read of a mapping whose file is cut becomes an error instead of a crash
  const bool mappable_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

// Asks the kernel to read some megabytes from `position` on into the page cache.
void ReadAhead(OpenSource& source, uint64_t position);

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_SOURCE_FILES_H_
