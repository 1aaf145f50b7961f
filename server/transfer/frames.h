// Frames carry bytes of a transfer to a rank whose memory this process cannot map. The reader
// cuts the bytes that the rank needs into frames. A TransferSink sends them. A FrameReceiver
// (server/transfer/frame_receiver.h) on the rank's side places them.
#ifndef CKPTD_SERVER_TRANSFER_FRAMES_H_
#define CKPTD_SERVER_TRANSFER_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"

namespace ckptd {

// The largest payload of a frame: small enough that a slow link shows progress often.
inline constexpr size_t kMaxFrameBytes = 1 << 20;

// The payload is those of the source bytes [begin, end) of file number `file` that the receiver's
// plan needs, in file order and without gaps. Each frame can be placed alone, so frames may come
// in any order over any number of streams.
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

// Sends frames to one rank. The caller of the transfer owns it. Thread-safe. An error is final.
class TransferSink {
 public:
  virtual ~TransferSink() = default;  // cuts the stream off if Finish did not succeed
  // Returns when the frame is on its way. Waits while the receiver is behind. Errors: the
  // receiver's answer; Unavailable RANK_LOST naming the rank if nothing has moved for the step
  // timeout.
  virtual absl::Status Send(const Frame& frame) = 0;
  // Waits until the receiver has placed all frames. Call it once, after the last frame.
  virtual absl::Status Finish() = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_TRANSFER_FRAMES_H_
