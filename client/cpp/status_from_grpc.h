// Turns gRPC's errors into ours. Includes gRPC, so only the .cc files of this folder include it.
#ifndef CKPTD_CLIENT_CPP_STATUS_FROM_GRPC_H_
#define CKPTD_CLIENT_CPP_STATUS_FROM_GRPC_H_

#include <grpcpp/support/status.h>

#include <string_view>

#include "absl/status/status.h"
#include "client/cpp/address.h"

namespace ckptd {
inline namespace client {

// The error of a call that was `doing` something ("loading /data/m"). An error of the daemon
// keeps its code, sentence, reason and facts. An error of the transport gets a reason of ours:
// DAEMON_UNREACHABLE, DEADLINE, or that of its code. Never OK for a failed call.
absl::Status StatusFromGrpc(const grpc::Status& status, std::string_view doing,
                            const Address& address);

}  // namespace client
}  // namespace ckptd

#endif  // CKPTD_CLIENT_CPP_STATUS_FROM_GRPC_H_
