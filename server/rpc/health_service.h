// grpc.health.v1.Health for names that need not be known in advance: gRPC's own service takes only
// names that were registered. Thread-safe. May serve on several servers.
#ifndef CKPTD_SERVER_RPC_HEALTH_SERVICE_H_
#define CKPTD_SERVER_RPC_HEALTH_SERVICE_H_

#include <functional>
#include <string>
#include <utility>

#include "common/base/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/node/health.h"

namespace ckptd {

class HealthServiceImpl final : public grpc::health::v1::Health::Service {
 public:
  // Called for each request, and twice a second for each watch.
  using Answer = std::function<ServingStatus(const std::string& service)>;
  explicit HealthServiceImpl(Answer answer) : answer_(std::move(answer)) {}

  // NOT_FOUND for a name that is not known here.
  grpc::Status Check(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::health::v1::HealthCheckResponse* response) override;
  // RESOURCE_EXHAUSTED TOO_MANY_WAITING beyond kMaxHealthWatches: each occupies a server thread.
  grpc::Status Watch(grpc::ServerContext* context,
                     const grpc::health::v1::HealthCheckRequest* request,
                     grpc::ServerWriter<grpc::health::v1::HealthCheckResponse>* writer) override;

  // From now on every answer is NOT_SERVING, and watches end.
  void Stop();

 private:
  bool IsStopping();
  // False if the service stops.
  bool Pause();

  const Answer answer_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int watches_ ABSL_GUARDED_BY(mutex_) = 0;
};

constexpr int kMaxHealthWatches = 4;

}  // namespace ckptd

#endif  // CKPTD_SERVER_RPC_HEALTH_SERVICE_H_
