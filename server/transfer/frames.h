// How bytes of a transfer reach a rank whose memory this process cannot map: the
// reader cuts what that rank needs into frames, a sink carries them, and a
// FrameReceiver (server/transfer/frame_receiver.h) over there places them.
#ifndef CKPTD_SERVER_TRANSFER_FRAMES_H_
#define CKPTD_SERVER_TRANSFER_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace ckptd {

// Most payload of a frame: small enough that a slow link shows progress often.
inline constexpr size_t kMaxFrameBytes = 1 << 20;

// The payload is the bytes that the receiver's plan needs out of source bytes
// [begin, end) of file number `file`, in file order, without gaps. Frames stand
// for themselves: any order, any number of streams.
struct FrameHeader {
  uint32_t file = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t checksum = 0;  // XXH3-64 of the payload
};

struct Frame {
  FrameHeader header;
  // Shared, because ranks that need the same bytes get the same payload.
  std::shared_ptr<const std::byte[]> data;
  size_t bytes = 0;  // 1 to kMaxFrameBytes
};

// One rank that receives frames. Thread-safe. Owned by whoever runs the transfer.
class TransferSink {
 public:
  virtual ~TransferSink() = default;  // what was not finished is cut off
  // Returns when the frame is on its way; waits while the receiver is behind.
  // Errors: what the receiver answered; Unavailable RANK_LOST naming the rank when
  // nothing has moved for the time of a step.
  virtual absl::Status Send(const Frame& frame) = 0;
  // After the last frame, once: waits until the receiver has placed all of them.
  virtual absl::Status Finish() = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_FRAMES_H_
