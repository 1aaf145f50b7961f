// The seam between a transfer and storage: brings blocks of source files into
// reach of this thread's caches.
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

// Largest block that one Use call may ask for; also the size of the buffer that
// each reader owns. Stays in the second-level cache.
inline constexpr size_t kReadBlockBytes = 256 << 10;

// One per thread; not thread-safe.
class BlockReader {
 public:
  // At most `direct_reads` of kItemBytes are in flight at a time; 0: none ever. Longer
  // items are read in pieces.
  BlockReader(SourceFiles& files, size_t direct_reads, MapProbe probe = MapProbe())
      : files_(files),
        most_ahead_(direct_reads),
        probe_(probe),
        buffer_(std::make_unique_for_overwrite<std::byte[]>(kReadBlockBytes)) {}

  // Starts reading an item that will be begun later, if it is to be read directly and
  // there is room. Items are begun in the order in which this was called. True if
  // the one after it may be asked for as well.
  bool Ahead(const WorkItem& item);
  // Whether the item that has begun is read directly, all that is left of it and of those
  // asked for is in flight or here, and there is room for more.
  bool HasRoom() const {
    return way_ == IoMode::kDirect && direct_ != nullptr && direct_->HasRoom();
  }

  // Turns to an item: opens its file, chooses how to read it, and has the
  // kernel read ahead when it is not in the page cache. `elsewhere`: who uses it would read
  // all of it by ReadTo, so a mapping is chosen only if nothing else may be. `needed`, of
  // which each Use asks within one range, is valid until End.
  absl::Status Begin(const WorkItem& item, bool elsewhere = false,
                     NeededRanges needed = std::nullopt);

  // Calls use(data) with the bytes [offset, offset + bytes) of the file, which
  // lie in the item; bytes <= kReadBlockBytes; of an item longer than kItemBytes,
  // offsets ascend from call to call. `data` is valid during the call and may be
  // a mapping, so `use` must obey the rules of RunGuarded. Errors: those of
  // PreadFull; `use` may then have run in part.
  absl::Status Use(uint64_t offset, size_t bytes,
                   absl::FunctionRef<void(std::span<const std::byte>)> use);

  // Where way() is kBuffer: reads bytes of the item to where they belong. Errors: those of
  // PreadFull.
  absl::Status ReadTo(uint64_t offset, std::span<std::byte> place);

  void End();

  // How the item that was begun last is read. Where direct reads fail halfway, it turns to
  // the buffer, which then counts for all of the item.
  IoMode way() const { return way_; }

 private:
  // How an item that was asked for ahead is best read.
  struct FoundAhead {
    uint32_t file = 0;
    uint64_t begin = 0;
    IoMode way = IoMode::kBuffer;
  };

  IoMode WayOf(const OpenSource& source, const WorkItem& item);
  bool BetterCopied(const WorkItem& item);
  bool AskDirect(const WorkItem& item, std::shared_ptr<OpenSource> source, NeededRanges needed);
  void ReadByBuffer(const WorkItem& rest);
  absl::Status UseMapped(uint64_t offset, size_t bytes,
                         absl::FunctionRef<void(std::span<const std::byte>)> use);

  SourceFiles& files_;
  const size_t most_ahead_;
  MapProbe probe_;
  std::deque<FoundAhead> found_ahead_;  // of items that have not begun
  std::unique_ptr<std::byte[]> buffer_;
  std::shared_ptr<OpenSource> source_;
  WorkItem item_;
  IoMode way_ = IoMode::kBuffer;
  bool tried_direct_ = false;
  std::unique_ptr<DirectItems> direct_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_BLOCK_READER_H_
