// CheckpointService.JoinLoad: a call that is open for as long as its client takes part in a load,
// and holds no thread.
#ifndef CKPTD_SERVER_RPC_JOIN_LOAD_H_
#define CKPTD_SERVER_RPC_JOIN_LOAD_H_

#include "ckptd/v1/checkpoint_service.grpc.pb.h"
#include "server/node/node.h"

namespace ckptd {

// The reactor deletes itself; `node` outlives the service's server.
grpc::ServerUnaryReactor* JoinLoad(Node& node, const v1::JoinLoadRequest& request,
                                   v1::JoinLoadResponse* response);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_JOIN_LOAD_H_
