// Puts the bytes of one work item where they belong: copies, casts, scatters,
// and hashes on the way.
#ifndef CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_
#define CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/digest.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/schedule.h"
#include "server/transfer/slab_map.h"

namespace ckptd {

// Source bytes [begin, end).
struct SourceRange {
  uint64_t begin = 0;
  uint64_t end = 0;
};

// One per thread; not thread-safe. What it is made with must outlive it.
class ItemPlacer {
 public:
  // `board` is null when no digests are wanted.
  ItemPlacer(const Schedule& schedule, std::span<const TransferTarget> targets,
             std::span<const SlabMap> slabs, DigestBoard* board);

  // Turns to an item. Errors: none for items of BuildSchedule.
  absl::Status Begin(const WorkItem& item);

  // What to read for this item, ascending; gaps shorter than kReadThroughGap
  // are part of a range.
  std::span<const SourceRange> ranges() const { return ranges_; }
  // Bytes of the item that some copy needs, each counted once.
  uint64_t needed_bytes() const { return needed_bytes_; }
  // Where a block that begins at `offset` should end: at most `limit`, never
  // within an element that is cast.
  uint64_t BlockEnd(uint64_t offset, uint64_t limit) const;
  // Name of a tensor that needs the byte at `offset` or the next one after it.
  const std::string& TensorAt(uint64_t offset) const;

  // Places what comes from source bytes [offset, offset + data.size()). Blocks
  // come in ascending order. May be abandoned by longjmp while it reads `data`;
  // the item is lost then.
  void Place(uint64_t offset, std::span<const std::byte> data);

  // After the last block: settles digests, adds the target bytes placed to
  // `done[target]`. Internal COVERAGE if bytes came twice.
  absl::Status Finish(std::span<uint64_t> done);

 private:
  static constexpr int kNoSlot = -1;
  static constexpr size_t kSlots = 64;

  // A copy that takes part in this item.
  struct Active {
    Geometry geometry;
    const SharedCopy* copy = nullptr;
    uint64_t tensor_bytes = 0;
    uint64_t placed = 0;  // local bytes
    // Blocks that this item fills alone: [first_whole, last_whole).
    uint64_t first_whole = 0;
    uint64_t last_whole = 0;
    int slot = kNoSlot;  // of the block being hashed
  };
  struct PendingFill {
    const Active* active = nullptr;
    uint64_t block = 0;
    uint64_t bytes = 0;
  };

  void FindWholeBlocks(const WorkItem& item, Active& active) const;
  void FindRanges(const WorkItem& item);
  void JoinRanges();
  uint64_t PartEnd(uint64_t offset, uint64_t limit) const;
  uint64_t CutAtElement(uint64_t end, uint64_t limit) const;
  void PlacePart(uint64_t offset, std::span<const std::byte> data);
  void PlaceRun(Active& active, const std::byte* data, uint64_t local, uint64_t bytes);
  void PlaceInBlock(Active& active, const std::byte* data, uint64_t local, uint64_t bytes);
  void Move(const Active& active, const std::byte* data, uint64_t local, uint64_t bytes,
            Xxh3Stream* hash);
  void Write(const Active& active, const std::byte* bytes, uint64_t local, uint64_t count);
  void AddFill(const Active& active, uint64_t block, uint64_t bytes);
  std::span<const Destination> DestinationsOf(const Active& active) const;
  int TakeSlot();

  const Schedule& schedule_;
  const std::span<const TransferTarget> targets_;
  const std::span<const SlabMap> slabs_;
  DigestBoard* const board_;

  std::vector<Active> actives_;
  std::vector<RunCursor> cursors_;
  std::vector<SourceRange> ranges_;
  std::vector<PendingFill> fills_;
  uint64_t needed_bytes_ = 0;
  // When strided copies share what is read: length of the parts that are dealt
  // out, and where some part begins. 0: no parts.
  uint64_t scatter_step_ = 0;
  uint64_t scatter_base_ = 0;
  std::vector<Xxh3Stream> streams_;  // kSlots of them, when digests are wanted
  uint64_t slots_in_use_ = 0;        // bit per slot
  std::unique_ptr<std::byte[]> cast_buffer_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_
