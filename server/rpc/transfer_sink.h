// TransferSink over gRPC: several streams to one rank, each on a connection of its own.
#ifndef CKPTD_SERVER_RPC_TRANSFER_SINK_H_
#define CKPTD_SERVER_RPC_TRANSFER_SINK_H_

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/protocol/links.h"
#include "server/rpc/peer_channel.h"
#include "server/rpc/transfer_stream.h"
#include "server/transfer/frames.h"

namespace ckptd {

class GrpcTransferSink final : public TransferSink {
 public:
  struct Options {
    unsigned streams = 4;
    // A rank without any progress for this long is lost.
    std::chrono::nanoseconds step = std::chrono::seconds(5);
  };
  GrpcTransferSink(const MemberIdentity& to, const PeerSecurity& security, const SinkCall& call,
                   Options options);

  absl::Status Send(const Frame& frame) override;
  absl::Status Finish() override;

 private:
  LastMove moved_;
  std::vector<std::unique_ptr<TransferStream>> streams_;
  std::atomic<size_t> turn_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_TRANSFER_SINK_H_
