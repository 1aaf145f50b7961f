// Limits the streams of gRPC's reflection service that are open on one server.
#ifndef CKPTD_SERVER_RPC_REFLECTION_LIMIT_H_
#define CKPTD_SERVER_RPC_REFLECTION_LIMIT_H_

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace ckptd {

// gRPC's reflection service occupies a thread per stream, as long as the client likes, and a
// server has few threads. Beyond kMostReflections streams the oldest one is cancelled. Tools ask
// at once what they want to know, so this does not hurt them.
constexpr int kMostReflections = 8;
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeReflectionLimit();

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_REFLECTION_LIMIT_H_
