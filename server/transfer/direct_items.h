// Work items read past the page cache: a short one by one direct read, a long one by
// several that follow each other. While one of them is used the next ones are in
// flight, of the same item and of those after it.
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

// Of an item, what will be used: ranges that ascend and share no byte. Nullopt: all of it.
using NeededRanges = std::optional<std::span<const SourceRange>>;

// One per thread; not thread-safe.
class DirectItems {
 public:
  // At most `slots` reads of up to `most` bytes each are in flight or in use at a time. Null
  // where DirectReads are not to be had.
  static std::unique_ptr<DirectItems> Create(size_t slots, uint64_t most);

  // Asks for an item, and starts what there is room for; the source's file is open with
  // O_DIRECT. Items are begun in the order in which they were asked for. `needed` stays
  // valid until End. False, and the item is not asked for, when the kernel takes no more.
  bool Ask(const WorkItem& item, std::shared_ptr<OpenSource> source, NeededRanges needed);
  bool none_asked() const { return asked_.empty(); }
  // Whether it is this item that is begun next.
  bool IsNext(const WorkItem& item) const;
  // Whether all that was asked for is in flight or here, and there is room for more.
  bool HasRoom() const { return !refused_ && taken_ < slots_; }

  // Turns to the next item, of which no more than `needed` is started from here on; waits for
  // the first bytes of it. False when they could not be read this way; End it all the same.
  bool Begin(NeededRanges needed);

  // The bytes of the item from `offset` on, as many as `room` has, which lie in one range of
  // those that are needed. Offsets ascend from call to call where the item is longer than one
  // read. The bytes lie in `room` where they came by two reads; valid until the next call.
  // Empty when they could not be read this way, or the file has fewer.
  std::span<const std::byte> Get(uint64_t offset, std::span<std::byte> room);

  // Done with the item, or with trying to read it this way.
  void End();

 private:
  // A read that was started.
  struct Piece {
    SourceRange range;
    size_t slot = 0;
  };
  struct Asked {
    WorkItem item;
    std::shared_ptr<OpenSource> source;  // holds the descriptor
    NeededRanges needed;                 // without those that end before `next`
    uint64_t next = 0;                   // where what was not started begins
    std::deque<Piece> pieces;            // ascending
  };

  DirectItems(std::unique_ptr<DirectReads> reads, size_t slots, uint64_t most)
      : slots_(slots), most_(most), reads_(std::move(reads)) {}

  std::optional<SourceRange> NextPiece(Asked& asked) const;
  void StartMore();
  bool Start(Asked& asked, const SourceRange& range);
  void DropFirstPiece();
  std::span<const std::byte> From(uint64_t offset);

  const size_t slots_;
  const uint64_t most_;
  size_t taken_ = 0;      // slots
  bool refused_ = false;  // a read, by the kernel: no more of them
  std::deque<Asked> asked_;
  std::unique_ptr<DirectReads> reads_;  // goes first: it waits for what is in flight
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_DIRECT_ITEMS_H_
