#include "server/rpc/transfer_sink.h"

#include "common/base/status.h"

namespace ckptd {

GrpcTransferSink::GrpcTransferSink(const MemberIdentity& to, const PeerSecurity& security,
                                   const SinkCall& call, Options options) {
  for (unsigned i = 0; i < options.streams; ++i) {
    streams_.push_back(std::make_unique<TransferStream>(PeerChannel(to.address, security), to,
                                                        call, options.step));
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

absl::Status GrpcTransferSink::Finish() {
  absl::Status first;
  for (const auto& stream : streams_) {
    const absl::Status status = stream->Finish();
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace ckptd
