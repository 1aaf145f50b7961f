// Cuts the bytes that a reader thread has read into frames for ranks whose memory is not mapped
// here.
#ifndef CKPTD_SERVER_TRANSFER_FRAME_SENDER_H_
#define CKPTD_SERVER_TRANSFER_FRAME_SENDER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/transfer/frames.h"
#include "server/transfer/item_copies.h"
#include "server/transfer/schedule.h"

namespace ckptd {

// A target that has a sink, and the schedule of this target alone.
struct RemoteTarget {
  size_t target = 0;  // index into the transfer's targets
  std::span<const TransferTarget> self;
  Schedule schedule;
};

// Each ItemWorker owns one. Not thread-safe: one per thread. `remotes` must outlive it. Ranks
// that need the same bytes of an item share one payload.
class FrameSender {
 public:
  explicit FrameSender(std::span<const RemoteTarget> remotes);

  // Begins an item of the whole transfer.
  absl::Status Begin(uint32_t file, uint64_t begin, uint64_t end);
  // Sends full frames, so that source bytes [offset, offset + bytes) find room. Call it before
  // each block. `offset` must not cut an element.
  absl::Status MakeRoom(uint64_t offset, uint64_t bytes);
  // Adds the bytes that were read at `offset`. Offsets must ascend. May be abandoned by longjmp
  // while it reads `data`; the item is lost then.
  void Add(uint64_t offset, std::span<const std::byte> data);
  // Sends the rest, and adds each target's bytes to done[target].
  absl::Status Finish(std::span<uint64_t> done);

 private:
  // Bytes that go to one or more remotes.
  struct Parcel {
    std::vector<SourceRange> ranges;
    std::vector<size_t> remotes;
    size_t next_range = 0;
    uint64_t begin = 0;  // source position where the open frame begins
    uint64_t left = 0;   // bytes of the item that are not yet sent
    std::shared_ptr<std::byte[]> data;
    size_t filled = 0;
  };

  Parcel& ParcelFor(std::span<const SourceRange> ranges);
  absl::Status Flush(Parcel& parcel, uint64_t end);

  const std::span<const RemoteTarget> remotes_;
  std::vector<ItemCopies> copies_;  // per remote
  std::vector<Parcel> parcels_;
  size_t parcel_count_ = 0;  // those of this item; the others only keep their memory
  uint32_t file_ = 0;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_FRAME_SENDER_H_
