// The seam between a transfer and storage: brings blocks of source files into the caches of the
// calling thread.
#ifndef CKPTD_SERVER_TRANSFER_BLOCK_READER_H_
#define CKPTD_SERVER_TRANSFER_BLOCK_READER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/transfer/direct_items.h"
#include "server/transfer/map_probe.h"
#include "server/transfer/source_files.h"

namespace ckptd {

// The most bytes that one call of WithBlock may ask for, and the size of each reader's buffer. A
// block of this size stays in the second-level cache.
inline constexpr size_t kReadBlockBytes = 256 << 10;

// Each ItemWorker owns one. Not thread-safe: one per thread.
class BlockReader {
 public:
  // At most `direct_reads` direct reads of kItemBytes are in flight at a time. With 0 there are
  // none. Longer items are read in pieces.
  BlockReader(SourceFiles& files, size_t direct_reads, MapProbe probe = MapProbe())
      : files_(files),
        max_direct_reads_(direct_reads),
        probe_(probe),
        buffer_(std::make_unique_for_overwrite<std::byte[]>(kReadBlockBytes)) {}

  // Waits for the direct reads in flight.
  ~BlockReader();
  BlockReader(const BlockReader&) = delete;
  BlockReader& operator=(const BlockReader&) = delete;

  // Starts to read an item that will be begun later, if direct reads suit it and there is room.
  // Items must be begun in the order of these calls. Returns true if there is room to prefetch
  // the next item as well.
  bool Prefetch(const WorkItem& item);
  // Whether direct reads have room for more items: the current item is read directly, and all
  // reads for it and for the prefetched items have been started.
  bool HasRoom() const {
    return io_mode_ == IoMode::kDirect && direct_ != nullptr && direct_->HasRoom();
  }

  // Begins an item: opens its file and chooses how to read it. If the item is not in the page
  // cache, the kernel starts to read it ahead. `direct_to_target`: the caller would use ReadTo
  // for all of the item, so a mapping is chosen only if the settings allow nothing else. Each
  // WithBlock asks for bytes of one range in `needed`, which must stay valid until End.
  absl::Status Begin(const WorkItem& item, bool direct_to_target = false,
                     NeededRanges needed = std::nullopt);

  // Calls use(data) with the bytes [offset, offset + bytes) of the file, which must lie in the
  // item. At most kReadBlockBytes. For an item longer than kItemBytes, offsets must ascend from
  // call to call. `data` is valid during the call and may be a mapping, so `use` must obey the
  // rules of RunGuarded. Errors: those of PreadFull. `use` may then have run in part.
  absl::Status WithBlock(uint64_t offset, size_t bytes,
                         absl::FunctionRef<void(std::span<const std::byte>)> use);

  // Reads bytes of the item straight into `place`. Only when io_mode() is kBuffer. Errors: those
  // of PreadFull.
  absl::Status ReadTo(uint64_t offset, std::span<std::byte> place);

  void End();

  // How the current item is read. If direct reads fail halfway, this becomes kBuffer for all of
  // the item.
  IoMode io_mode() const { return io_mode_; }

 private:
  // How to read an item that was prefetched.
  struct PlannedRead {
    uint32_t file = 0;
    uint64_t begin = 0;
    IoMode io_mode = IoMode::kBuffer;
  };

  // To be held while the file of `item` is waited for.
  StorageWatch::Call Waiting(const WorkItem& item) const {
    return StorageWatch::Call(files_.watch(), files_.path(item.file), item.begin);
  }
  IoMode ChooseIoMode(const OpenSource& source, const WorkItem& item);
  bool IsFasterCopied(const WorkItem& item);
  bool QueueDirect(const WorkItem& item, std::shared_ptr<OpenSource> source, NeededRanges needed);
  void SwitchToBuffer(const WorkItem& rest);
  absl::Status WithMappedBlock(uint64_t offset, size_t bytes,
                               absl::FunctionRef<void(std::span<const std::byte>)> use);

  SourceFiles& files_;
  const size_t max_direct_reads_;
  MapProbe probe_;
  std::deque<PlannedRead> planned_reads_;  // of items that have not begun
  std::unique_ptr<std::byte[]> buffer_;
  std::shared_ptr<OpenSource> source_;
  WorkItem item_;
  IoMode io_mode_ = IoMode::kBuffer;
  bool tried_direct_ = false;
  std::unique_ptr<DirectItems> direct_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_BLOCK_READER_H_
