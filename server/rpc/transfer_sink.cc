#include "server/rpc/transfer_sink.h"

#include <utility>

#include "common/base/at_once.h"

namespace ckptd {

GrpcTransferSink::GrpcTransferSink(const MemberIdentity& to, const PeerSecurity& security,
                                   const SinkCall& call, Options options) {
  for (unsigned i = 0; i < options.streams; ++i) {
    streams_.push_back(std::make_unique<TransferStream>(PeerChannel(to.address, security), to,
                                                        call, options.step, moved_));
  }
}

absl::Status GrpcTransferSink::Send(const Frame& frame) {
  const size_t first = turn_.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < streams_.size(); ++i) {
    TransferStream& stream = *streams_[(first + i) % streams_.size()];
    if (auto sent = stream.TrySend(frame); sent.has_value()) return *sent;
  }
  return streams_[first % streams_.size()]->Send(frame);
}

// All at once: each sees the acknowledgements of its own stream alone, and they count for the rank.
absl::Status GrpcTransferSink::Finish() {
  std::vector<absl::Status> ended(streams_.size());
  AtOnce(ended.size(), ended.size(), [&](size_t i) { ended[i] = streams_[i]->Finish(); });
  for (absl::Status& status : ended) {
    if (!status.ok()) return std::move(status);
  }
  return absl::OkStatus();
}

}  // namespace ckptd
