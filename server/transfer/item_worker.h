// One reader thread's tools: reads an item once, places what belongs here and
// sends what belongs elsewhere.
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

// Not thread-safe. What it is made with must outlive it.
class ItemWorker {
 public:
  // `slabs` writes those of the targets here.
  ItemWorker(SlabWriter& slabs, SourceFiles& files, size_t direct_reads)
      : slabs_(slabs), reader_(files, direct_reads) {}

  // Before `item` is done; see BlockReader::Ahead.
  bool Ahead(const WorkItem& item) { return reader_.Ahead(item); }
  // While one is done; see BlockReader::HasRoom.
  bool HasRoom() const { return reader_.HasRoom(); }

  // `item` is of `window`. Adds each target's bytes to done[target]. `poll` is called
  // about once per MiB; its error ends the item. Errors name file and tensor.
  absl::Status Do(std::shared_ptr<const TransferWindow> window, const WorkItem& item,
                  std::span<uint64_t> done, absl::FunctionRef<absl::Status()> poll);
  // Of the last item, each byte counted once.
  uint64_t needed_bytes() const { return tools_->wanted.needed_bytes(); }
  // How the last item was read.
  IoMode way() const { return reader_.way(); }

 private:
  // What is made for a window.
  struct Tools {
    Tools(const TransferWindow& window, SlabWriter& slabs);

    const TransferParts& parts;
    ItemCopies wanted;  // by anybody: what is read
    ItemCopies here;    // by targets here, when others are elsewhere
    ItemPlacer placer;
    FrameSender sender;
    std::vector<uint64_t> placed;  // per target here
  };

  void TurnTo(std::shared_ptr<const TransferWindow> window);
  absl::Status Begin(const WorkItem& item);
  absl::Status DoBlock(uint64_t begin, uint64_t end);
  absl::Status Finish(std::span<uint64_t> done);
  absl::Status Blame(const absl::Status& status, uint64_t offset) const;
  bool sends() const { return !tools_->parts.remotes.empty(); }
  // Else bytes pass through caches on their way, to be hashed or sent.
  bool in_place() const {
    return reader_.way() == IoMode::kBuffer && !sends() && tools_->placer.plain();
  }

  SlabWriter& slabs_;
  BlockReader reader_;
  std::shared_ptr<const TransferWindow> window_;  // outlives its tools
  std::optional<Tools> tools_;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_
