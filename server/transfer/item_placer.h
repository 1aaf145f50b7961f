// Puts the bytes of one work item into their places: copies, casts and scatters them, and hashes
// them in the same pass.
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

// Each ItemWorker owns one. Not thread-safe: one per thread. The constructor's arguments must
// outlive it.
class ItemPlacer {
 public:
  // `targets` are the targets of `copies`. `board` is null if no digests are wanted.
  ItemPlacer(const ItemCopies& copies, std::span<const TransferTarget> targets,
             SlabWriter& slabs, DigestBoard* board);

  // Call this after `copies` has begun another item.
  void Begin();

  // Places the source bytes [offset, offset + data.size()). Offsets must ascend. May be abandoned
  // by longjmp while it reads `data`; the item is lost then.
  void Place(uint64_t offset, std::span<const std::byte> data);

  // Whether each needed byte of the item goes uncast to one place in staging memory, in pieces
  // that are long enough. Reading straight into that memory then saves a copy.
  bool plain() const { return plain_; }
  // Does the work of Place when plain(): calls read(offset, place) to bring the needed ones of
  // the source bytes [offset, end) into their places. Errors: those of `read`; the item is lost
  // then.
  using ReadTo = absl::FunctionRef<absl::Status(uint64_t offset, std::span<std::byte> place)>;
  absl::Status PlaceByReading(uint64_t offset, uint64_t end, ReadTo read);

  // Call this after the last block. Completes digests, and adds the placed bytes to
  // `done[target]`. The writer may still copy staged bytes to their device. Errors: Internal
  // COVERAGE if bytes came twice.
  absl::Status Finish(std::span<uint64_t> done);

 private:
  static constexpr int kNoSlot = -1;
  static constexpr size_t kSlots = 64;

  // A copy of this item, and how much of it is done.
  struct Active {
    const ItemCopies::Active* copy = nullptr;
    uint64_t tensor_bytes = 0;
    uint64_t placed = 0;  // local bytes
    // Blocks that this item fills alone: [first_whole, last_whole).
    uint64_t first_whole = 0;
    uint64_t last_whole = 0;
    int slot = kNoSlot;      // slot of the block that is being hashed
    bool on_device = false;  // the device places the current bytes, so they are only hashed here
    // Destinations in staged memory for which the bytes are written once: grouped_[first_grouped]
    // and those after it.
    size_t first_grouped = 0;
    size_t grouped = 0;

    const Geometry& geometry() const { return copy->geometry; }
  };
  struct PendingFill {
    const Active* active = nullptr;
    uint64_t block = 0;
    uint64_t bytes = 0;
  };

  void FindWholeBlocks(Active& active) const;
  void FindGrouped(Active& active);
  bool AllPlain() const;
  absl::Status ReadRun(Active& active, uint64_t from, uint64_t to, ReadTo read);
  void PlaceOnDevices(uint64_t offset, std::span<const std::byte> data);
  void PlacePart(uint64_t offset, std::span<const std::byte> data);
  void PlaceRun(Active& active, const std::byte* data, uint64_t local, uint64_t bytes);
  void PlaceInBlock(Active& active, const std::byte* data, uint64_t local, uint64_t bytes);
  void Move(const Active& active, const std::byte* data, uint64_t local, uint64_t bytes,
            Xxh3Stream* hash);
  // `bytes` (at most kCastBytes) of the target from their source at `data`; valid until the next
  // call.
  const std::byte* Convert(const Geometry& geometry, const std::byte* data, size_t bytes);
  void Write(const Active& active, const std::byte* bytes, uint64_t local, uint64_t count);
  // Calls fill(std::byte* to, size_t n) for all memory that takes the bytes [local, local +
  // bytes) of the copy's tensor. The grouped destinations come first, as one, then each other
  // destination.
  template <typename Fill>
  void Visit(const Active& active, uint64_t local, uint64_t bytes, const Fill& fill);
  uint64_t TensorAt(const Destination& where) const;  // position in its slab
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

  std::span<const StagedPlace> GroupedPlacesOf(const Active& active) const {
    return std::span(grouped_).subspan(active.first_grouped, active.grouped);
  }

  std::vector<Active> actives_;
  std::vector<StagedPlace> grouped_;
  bool plain_ = false;
  std::vector<PendingFill> fills_;
  std::vector<Xxh3Stream> streams_;  // kSlots of them, when digests are wanted
  uint64_t slots_in_use_ = 0;        // one bit per slot
  std::unique_ptr<std::byte[]> cast_buffer_;
  std::unique_ptr<std::byte[]> swap_buffer_;  // once numbers were turned round and cast
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_PLACER_H_
