// CheckpointService.JoinLoad: a call that stays open while its client takes part in a load. It
// occupies no thread.
#ifndef CKPTD_SERVER_RPC_JOIN_LOAD_H_
#define CKPTD_SERVER_RPC_JOIN_LOAD_H_

#include "ckptd/v1/checkpoint_service.grpc.pb.h"
#include "server/node/node.h"

namespace ckptd {

// The reactor deletes itself. `node` must outlive the service's server.
grpc::ServerUnaryReactor* JoinLoad(Node& node, const v1::JoinLoadRequest& request,
                                   std::optional<uid_t> guest, v1::JoinLoadResponse* response);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_JOIN_LOAD_H_
