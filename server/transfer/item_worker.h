// Does the work items of one reader thread: reads an item once, places it in local memory and
// sends it to other hosts.
#ifndef CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_
#define CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/frame_sender.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/item_placer.h"
#include "server/transfer/transfer_parts.h"
#include "server/transfer/window.h"

namespace ckptd {

// Each reader thread owns one. Not thread-safe. The constructor's arguments must outlive it.
class ItemWorker {
 public:
  // `slabs` writes to the targets whose memory is here.
  ItemWorker(SlabWriter& slabs, SourceFiles& files, size_t direct_reads)
      : slabs_(slabs), reader_(files, direct_reads) {}

  // Call this before Do for `item`; see BlockReader::Prefetch.
  bool Prefetch(const WorkItem& item) { return reader_.Prefetch(item); }
  // May be called from the `poll` of Do; see BlockReader::HasRoom.
  bool HasRoom() const { return reader_.HasRoom(); }

  // Does `item` of `window`, and adds each target's bytes to done[target]. Calls `poll` about
  // once per MiB; its error ends the item. Errors name file and tensor.
  absl::Status Do(std::shared_ptr<const TransferWindow> window, const WorkItem& item,
                  std::span<uint64_t> done, absl::FunctionRef<absl::Status()> poll);
  // Source bytes that the last item needed, each counted once.
  uint64_t needed_bytes() const { return tools_->wanted.needed_bytes(); }
  // How the last item was read.
  IoMode io_mode() const { return reader_.io_mode(); }

 private:
  // Objects that are built for one window.
  struct Tools {
    Tools(const TransferWindow& window, SlabWriter& slabs);

    const TransferParts& parts;
    ItemCopies wanted;  // copies of all targets: what is read
    ItemCopies here;    // copies of targets whose memory is here
    ItemPlacer placer;
    FrameSender sender;
    std::vector<uint64_t> placed;  // per such target
  };

  void UseWindow(std::shared_ptr<const TransferWindow> window);
  absl::Status Begin(const WorkItem& item);
  absl::Status DoBlock(uint64_t begin, uint64_t end);
  absl::Status Finish(std::span<uint64_t> done);
  absl::Status NameTensor(const absl::Status& status, uint64_t offset) const;
  bool sends() const { return !tools_->parts.remotes.empty(); }
  // Whether bytes are read straight to their places. Otherwise they pass through a buffer, to be
  // hashed or sent.
  bool in_place() const {
    return reader_.io_mode() == IoMode::kBuffer && !sends() && tools_->placer.plain();
  }

  SlabWriter& slabs_;
  BlockReader reader_;
  std::shared_ptr<const TransferWindow> window_;  // must outlive `tools_`
  std::optional<Tools> tools_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_
