// Converts between absl::Status and grpc::Status. Reason and facts travel as google.rpc.ErrorInfo
// in the standard details trailer.
#ifndef CKPTD_SERVER_RPC_GRPC_STATUS_H_
#define CKPTD_SERVER_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace ckptd {

grpc::Status ToGrpc(const absl::Status& status);
// A status without our details keeps its code and message.
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_GRPC_STATUS_H_
