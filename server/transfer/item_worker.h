// One reader thread's tools: reads an item once, places what belongs here and
// sends what belongs elsewhere.
#ifndef CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_
#define CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_

#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/transfer/block_reader.h"
#include "server/transfer/frame_sender.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/item_placer.h"
#include "server/transfer/transfer_parts.h"

namespace ckptd {

// Not thread-safe. What it is made with must outlive it.
class ItemWorker {
 public:
  ItemWorker(const TransferParts& parts, SlabWriter& slabs, DigestBoard* board,
             SourceFiles& files, size_t direct_reads);

  // Before `item` is done; see BlockReader::Ahead.
  bool Ahead(const WorkItem& item) { return reader_.Ahead(item); }

  // Adds each target's bytes to done[target]. `poll` is called about once per MiB;
  // its error ends the item. Errors name file and tensor.
  absl::Status Do(const WorkItem& item, std::span<uint64_t> done,
                  absl::FunctionRef<absl::Status()> poll);
  // Of the last item, each byte counted once.
  uint64_t needed_bytes() const { return wanted_.needed_bytes(); }
  // How the last item was read.
  ReadWay way() const { return reader_.way(); }

 private:
  absl::Status Begin(const WorkItem& item);
  absl::Status DoBlock(uint64_t begin, uint64_t end);
  absl::Status Finish(std::span<uint64_t> done);
  absl::Status Blame(const absl::Status& status, uint64_t offset) const;
  bool sends() const { return !parts_.remotes.empty(); }

  const TransferParts& parts_;
  BlockReader reader_;
  ItemCopies wanted_;  // by anybody: what is read
  ItemCopies here_;    // by targets here, when others are elsewhere
  ItemPlacer placer_;
  FrameSender sender_;
  std::vector<uint64_t> placed_;  // per target here
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_ITEM_WORKER_H_
