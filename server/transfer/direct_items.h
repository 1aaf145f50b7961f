// Reads work items past the page cache. A short item takes one direct read, a long one several in
// a row. While the bytes of one read are used, the next reads are in flight, for this item and
// those after it.
#ifndef CKPTD_SERVER_TRANSFER_DIRECT_ITEMS_H_
#define CKPTD_SERVER_TRANSFER_DIRECT_ITEMS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "server/transfer/direct_reads.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/source_files.h"

namespace ckptd {

// Ranges of an item that will be used. They ascend and share no byte. Nullopt: all of the item.
using NeededRanges = std::optional<std::span<const SourceRange>>;

// Each BlockReader owns one. Not thread-safe: one per thread.
class DirectItems {
 public:
  // At most `slots` reads of up to `max_bytes` each are in flight or in use at a time. Null if
  // this system cannot do DirectReads.
  static std::unique_ptr<DirectItems> Create(size_t slots, uint64_t max_bytes);

  // Queues an item, and starts as many of its reads as there is room for. The source's file must
  // be open with O_DIRECT. Items must be begun in the order in which they were queued. `needed`
  // must stay valid until End. Returns false if the kernel takes no more reads; then the item is
  // not queued.
  bool Enqueue(const WorkItem& item, std::shared_ptr<OpenSource> source, NeededRanges needed);
  bool empty() const { return queued_.empty(); }
  // The first of the queued items, of which there is one.
  const WorkItem& front() const { return queued_.front().item; }
  // Whether `item` is the next one to begin.
  bool IsNext(const WorkItem& item) const;
  // Whether all queued reads have been started and there is room for more.
  bool HasRoom() const { return !refused_ && slots_in_use_ < slots_; }

  // Begins the next item, and waits for its first bytes. From here on only bytes in `needed` are
  // read. Returns false if direct reads failed; call End in that case, too.
  bool Begin(NeededRanges needed);

  // The bytes of the item from `offset` on, as many as `room` has. They must lie in one needed
  // range. For an item that takes several reads, offsets must ascend from call to call. Bytes
  // that came by two reads are joined in `room`. Valid until the next call. Empty if direct reads
  // failed or the file has fewer bytes.
  std::span<const std::byte> Get(uint64_t offset, std::span<std::byte> room);

  // Ends the item. Call this also if Begin or Get failed.
  void End();

 private:
  // A read that was started.
  struct Piece {
    SourceRange range;
    size_t slot = 0;
  };
  struct QueuedItem {
    WorkItem item;
    std::shared_ptr<OpenSource> source;  // holds the descriptor
    NeededRanges needed;                 // ranges that end before `next` are dropped
    uint64_t next = 0;                   // where the part that was not started begins
    std::deque<Piece> pieces;            // ascending
  };

  DirectItems(std::unique_ptr<DirectReads> reads, size_t slots, uint64_t max_bytes)
      : slots_(slots), max_bytes_(max_bytes), reads_(std::move(reads)) {}

  std::optional<SourceRange> NextPiece(QueuedItem& queued) const;
  void StartMore();
  bool Start(QueuedItem& queued, const SourceRange& range);
  void DropFirstPiece();
  std::span<const std::byte> WaitForBytesAt(uint64_t offset);

  const size_t slots_;
  const uint64_t max_bytes_;
  size_t slots_in_use_ = 0;
  bool refused_ = false;  // the kernel refused a read, so none is started any more
  std::deque<QueuedItem> queued_;
  std::unique_ptr<DirectReads> reads_;  // destroyed first: it waits for the reads in flight
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_DIRECT_ITEMS_H_
