// Tells which source bytes of one work item its copies need, and where the item may be cut.
// Reading, sending and placing all use this.
#ifndef CKPTD_SERVER_TRANSFER_ITEM_COPIES_H_
#define CKPTD_SERVER_TRANSFER_ITEM_COPIES_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/transfer/geometry.h"
#include "server/transfer/schedule.h"

namespace ckptd {

// Source bytes [begin, end).
struct SourceRange {
  uint64_t begin = 0;
  uint64_t end = 0;

  bool operator==(const SourceRange& other) const {
    return begin == other.begin && end == other.end;
  }
};

// Not thread-safe: one per thread. The schedule and its targets must outlive it.
class ItemCopies {
 public:
  // A copy that takes part in this item.
  struct Active {
    Geometry geometry;
    const SharedCopy* copy = nullptr;
  };

  // `join_gap`: ranges that are at most this far apart become one.
  ItemCopies(const Schedule& schedule, std::span<const TransferTarget> targets, uint64_t join_gap)
      : schedule_(schedule), targets_(targets), join_gap_(join_gap) {}

  // Begins an item. Errors: none for items of BuildSchedule.
  absl::Status Begin(const WorkItem& item);

  const WorkItem& item() const { return item_; }
  std::span<const Active> actives() const { return actives_; }
  std::span<const Destination> DestinationsOf(const Active& active) const;
  // The bytes that some copy needs, ascending.
  std::span<const SourceRange> ranges() const { return ranges_; }
  // Bytes of the item that some copy needs, each counted once.
  uint64_t needed_bytes() const { return needed_bytes_; }
  // Bytes that the item puts into all its destinations together.
  uint64_t local_bytes() const;

  // `end`, or the last position before it that cuts no element of a cast. `limit` if `end`
  // reaches it.
  uint64_t CutAtElement(uint64_t end, uint64_t limit) const;
  // False when the item begins or ends within an element that is cast.
  bool CutsNoElement() const;
  // Where the part that begins at `offset` ends, at most `limit`. If strided copies share source
  // bytes, each part is placed for all of them before the next one.
  uint64_t PartEnd(uint64_t offset, uint64_t limit) const;
  // Name of a tensor that needs the byte at `offset` or the next one after it.
  const std::string& TensorAt(uint64_t offset) const;

 private:
  void FindRanges();
  void JoinRanges();

  const Schedule& schedule_;
  const std::span<const TransferTarget> targets_;
  const uint64_t join_gap_;
  WorkItem item_;
  std::vector<Active> actives_;
  std::vector<RunCursor> cursors_;
  std::vector<SourceRange> ranges_;
  uint64_t needed_bytes_ = 0;
  // Length of those parts, and a position where some part begins. 0: no parts.
  uint64_t scatter_step_ = 0;
  uint64_t scatter_base_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_COPIES_H_
