// Bounds how many streams of gRPC's reflection are open on one server.
#ifndef CKPTD_SERVER_RPC_REFLECTION_LIMIT_H_
#define CKPTD_SERVER_RPC_REFLECTION_LIMIT_H_

#include <grpcpp/support/server_interceptor.h>

#include <memory>

namespace ckptd {

// gRPC's own reflection service keeps a thread for each stream, as long as its client likes, and
// a server has only so many threads. Where one more begins than kMostReflections, the one that
// began first is cancelled: tools ask what they want to know at once.
constexpr int kMostReflections = 8;
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeReflectionLimit();

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_REFLECTION_LIMIT_H_
