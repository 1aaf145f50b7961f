// Sinks for tests: they pass frames to a receiver of this process, in pieces of odd lengths.
#ifndef CKPTD_TESTS_TESTING_FRAME_SINKS_H_
#define CKPTD_TESTS_TESTING_FRAME_SINKS_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "server/transfer/frame_receiver.h"
#include "server/transfer/frames.h"

namespace ckptd {

// Pieces of any length, so that elements are cut.
inline std::vector<std::span<const std::byte>> Ragged(std::span<const std::byte> data) {
  std::vector<std::span<const std::byte>> pieces;
  size_t length = 1;
  while (!data.empty()) {
    const size_t n = std::min(length, data.size());
    pieces.push_back(data.first(n));
    data = data.subspan(n);
    length = length * 7 % 70001 + 1;
  }
  return pieces;
}

class DirectSink final : public TransferSink {
 public:
  explicit DirectSink(FrameReceiver& receiver) : receiver_(receiver) {}

  // Runs before each frame. If it returns an error, the frame fails with it.
  std::function<absl::Status(const Frame&)> on_send;

  absl::Status Send(const Frame& frame) override {
    sent_bytes += frame.bytes;
    if (on_send) {
      if (absl::Status status = on_send(frame); !status.ok()) return status;
    }
    return receiver_.Take(frame.header, Ragged({frame.data.get(), frame.bytes}));
  }
  absl::Status Finish() override {
    ++finished;
    return absl::OkStatus();
  }

  std::atomic<uint64_t> sent_bytes = 0;
  std::atomic<int> finished = 0;

 private:
  FrameReceiver& receiver_;
};

}  // namespace ckptd

#endif  // CKPTD_TESTS_TESTING_FRAME_SINKS_H_
