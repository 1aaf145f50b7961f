// ckptd.v1.TransferService, on the peer port: receives what readers on other hosts send to this
// rank. Messages are parsed without a copy. Thread-safe.
#ifndef CKPTD_SERVER_RPC_TRANSFER_SERVICE_H_
#define CKPTD_SERVER_RPC_TRANSFER_SERVICE_H_

#include <atomic>

#include "ckptd/v1/transfer_service.grpc.pb.h"
#include "server/node/node.h"

namespace ckptd {

class TransferServiceImpl final
    : public v1::TransferService::WithRawCallbackMethod_Send<v1::TransferService::Service> {
 public:
  // Before this, every call is answered UNAVAILABLE. `node` must outlive the service's server.
  void SetNode(Node& node) { node_.store(&node); }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Send(
      grpc::CallbackServerContext* context) override;

 private:
  std::atomic<Node*> node_ = nullptr;
};

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_TRANSFER_SERVICE_H_
