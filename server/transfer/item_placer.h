// Puts the bytes of one work item where they belong: copies, casts, scatters,
// and hashes on the way.
#ifndef CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_
#define CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/base/digest.h"
#include "server/transfer/block_placer.h"
#include "server/transfer/digest_board.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/slab_writer.h"

namespace ckptd {

// One per thread; not thread-safe. What it is made with must outlive it.
class ItemPlacer {
 public:
  // Places what `copies` says, whose targets these are, by this thread's writer.
  // `board` is null when no digests are wanted.
  ItemPlacer(const ItemCopies& copies, std::span<const TransferTarget> targets,
             SlabWriter& slabs, DigestBoard* board);

  // `copies` has turned to another item.
  void Begin();

  // Places what comes from source bytes [offset, offset + data.size()). Blocks
  // come in ascending order. May be abandoned by longjmp while it reads `data`;
  // the item is lost then.
  void Place(uint64_t offset, std::span<const std::byte> data);

  // Whether every byte of the item that is needed goes, as it is, to staging memory, to one
  // place there, and in pieces long enough: reading it there saves a copy.
  bool plain() const { return plain_; }
  // Instead of Place, where plain(): has read(offset, place) bring the needed ones of the
  // source bytes [offset, end) to their places. Errors: those of `read`; the item is lost then.
  using ReadTo = absl::FunctionRef<absl::Status(uint64_t offset, std::span<std::byte> place)>;
  absl::Status PlaceByReading(uint64_t offset, uint64_t end, ReadTo read);

  // After the last block (the writer may still copy on what it staged): settles digests,
  // adds the target bytes placed to `done[target]`. Internal COVERAGE if bytes came twice.
  absl::Status Finish(std::span<uint64_t> done);

 private:
  static constexpr int kNoSlot = -1;
  static constexpr size_t kSlots = 64;

  // What has been done of a copy that takes part in this item.
  struct Active {
    const ItemCopies::Active* copy = nullptr;
    uint64_t tensor_bytes = 0;
    uint64_t placed = 0;  // local bytes
    // Blocks that this item fills alone: [first_whole, last_whole).
    uint64_t first_whole = 0;
    uint64_t last_whole = 0;
    int slot = kNoSlot;  // of the block being hashed
    bool left = false;   // of what is placed now: its device does it, here it is hashed
    // Destinations in staged memory that are written once, for all of them: together_[first]
    // and those after it.
    size_t first_together = 0;
    size_t together = 0;

    const Geometry& geometry() const { return copy->geometry; }
  };
  struct PendingFill {
    const Active* active = nullptr;
    uint64_t block = 0;
    uint64_t bytes = 0;
  };

  void FindWholeBlocks(Active& active) const;
  void FindTogether(Active& active);
  bool AllPlain() const;
  absl::Status ReadRun(Active& active, uint64_t from, uint64_t to, ReadTo read);
  void LeaveToDevices(uint64_t offset, std::span<const std::byte> data);
  void PlacePart(uint64_t offset, std::span<const std::byte> data);
  void PlaceRun(Active& active, const std::byte* data, uint64_t local, uint64_t bytes);
  void PlaceInBlock(Active& active, const std::byte* data, uint64_t local, uint64_t bytes);
  void Move(const Active& active, const std::byte* data, uint64_t local, uint64_t bytes,
            Xxh3Stream* hash);
  void Write(const Active& active, const std::byte* bytes, uint64_t local, uint64_t count);
  // fill(std::byte* to, size_t n) for all memory that takes [local, local + bytes) of the
  // copy's tensor: all of it for one destination, or those together, then for the next one.
  template <typename Fill>
  void Visit(const Active& active, uint64_t local, uint64_t bytes, const Fill& fill);
  uint64_t TensorAt(const Destination& where) const;  // in its slab
  void AddFill(const Active& active, uint64_t block, uint64_t bytes);
  std::span<const Destination> DestinationsOf(const Active& active) const {
    return copies_.DestinationsOf(*active.copy);
  }
  int TakeSlot();

  const ItemCopies& copies_;
  const std::span<const TransferTarget> targets_;
  SlabWriter& slabs_;
  BlockPlacer blocks_;
  DigestBoard* const board_;

  std::span<const StagedPlace> TogetherOf(const Active& active) const {
    return std::span(together_).subspan(active.first_together, active.together);
  }

  std::vector<Active> actives_;
  std::vector<StagedPlace> together_;
  bool plain_ = false;
  std::vector<PendingFill> fills_;
  std::vector<Xxh3Stream> streams_;  // kSlots of them, when digests are wanted
  uint64_t slots_in_use_ = 0;        // bit per slot
  std::unique_ptr<std::byte[]> cast_buffer_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_
