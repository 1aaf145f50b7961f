// Leaves to the device what its kernels do better than the processor: copies of many
// short runs, and casts that widen. The processor then passes whole blocks on.
#ifndef CKPTD_SERVER_TRANSFER_BLOCK_PLACER_H_
#define CKPTD_SERVER_TRANSFER_BLOCK_PLACER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "server/memory/block_copy.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/slab_writer.h"

namespace ckptd {

// One per thread; not thread-safe. What it is made with must outlive it.
class BlockPlacer {
 public:
  // Shorter runs cost the processor more than their bytes do.
  static constexpr uint64_t kShortRun = 4096;
  // Of source bytes: less is not worth a block and its tasks.
  static constexpr size_t kLeastBlock = 16 << 10;

  // Places what `copies` says, whose targets these are, by this thread's writer.
  BlockPlacer(const ItemCopies& copies, std::span<const TransferTarget> targets,
              SlabWriter& slabs)
      : copies_(copies), targets_(targets), slabs_(slabs) {}

  // `copies` has turned to another item.
  void Begin();
  // Number `i` of the item's copies can be left to its devices.
  bool Takes(size_t i) const { return left_[i].copies > 0; }

  // Leaves what those copies take of the source bytes [offset, offset + data.size()) to
  // their devices, if they take half of it at least: then true, and these bytes are
  // placed. May be abandoned by longjmp while it reads `data`, as ItemPlacer::Place.
  bool Place(uint64_t offset, std::span<const std::byte> data);

 private:
  struct OfSlab {
    size_t slab = 0;
    BlockCopy copy;
  };
  // Of one of the item's copies: to_[first] and those after it, one per destination.
  struct Left {
    size_t first = 0;
    size_t copies = 0;
  };

  bool Suits(const ItemCopies::Active& active) const;
  void Leave(const ItemCopies::Active& active);

  const ItemCopies& copies_;
  const std::span<const TransferTarget> targets_;
  SlabWriter& slabs_;
  std::vector<Left> left_;
  std::vector<OfSlab> to_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_BLOCK_PLACER_H_
