// Has a device's kernels do the copies that they do better than the processor: copies of many
// short runs, and casts that widen, but none of numbers in the other byte order. The processor then
// only hands whole blocks to the device.
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

// Each ItemPlacer owns one. Not thread-safe. The constructor's arguments must outlive it.
class BlockPlacer {
 public:
  // Shorter runs cost the processor more than their bytes do.
  static constexpr uint64_t kShortRun = 4096;
  // Source bytes. A smaller block does not repay the block and its tasks.
  static constexpr size_t kMinBlockBytes = 16 << 10;

  // `targets` are the targets of `copies`. Bytes are written through `slabs`.
  BlockPlacer(const ItemCopies& copies, std::span<const TransferTarget> targets,
              SlabWriter& slabs)
      : copies_(copies), targets_(targets), slabs_(slabs) {}

  // Call this after `copies` has begun another item.
  void Begin();
  // Whether the devices can do copy number `i` of the item.
  bool HandlesCopy(size_t i) const { return device_copies_[i].copies > 0; }

  // Hands the source bytes [offset, offset + data.size()) to the devices of the copies that they
  // can do. Returns true if it did. It does so only if those copies take at least half of the
  // bytes. May be abandoned by longjmp while it reads `data`, as ItemPlacer::Place.
  bool Place(uint64_t offset, std::span<const std::byte> data);

 private:
  struct SlabCopy {
    size_t slab = 0;
    BlockCopy copy;
  };
  // One copy of the item: slab_copies_[first] and those after it, one per destination.
  struct DeviceCopies {
    size_t first = 0;
    size_t copies = 0;
  };

  bool SuitsDevice(const ItemCopies::Active& active) const;
  void AddDeviceCopies(const ItemCopies::Active& active);

  const ItemCopies& copies_;
  const std::span<const TransferTarget> targets_;
  SlabWriter& slabs_;
  std::vector<DeviceCopies> device_copies_;
  std::vector<SlabCopy> slab_copies_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_BLOCK_PLACER_H_
