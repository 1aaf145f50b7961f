#include "server/rpc/health_service.h"

#include <optional>

#include <fmt/format.h>

#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/protocol/timing.h"
#include "server/rpc/grpc_status.h"

namespace ckptd {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse ToProto(ServingStatus status) {
  HealthCheckResponse response;
  response.set_status(status == ServingStatus::kServing      ? HealthCheckResponse::SERVING
                      : status == ServingStatus::kNotServing ? HealthCheckResponse::NOT_SERVING
                                                             : HealthCheckResponse::SERVICE_UNKNOWN);
  return response;
}

}  // namespace

grpc::Status HealthServiceImpl::Check(grpc::ServerContext*, const HealthCheckRequest* request,
                                      HealthCheckResponse* response) {
  const ServingStatus status =
      IsStopping() ? ServingStatus::kNotServing : answer_(request->service());
  if (status != ServingStatus::kUnknown) {
    *response = ToProto(status);
    return grpc::Status::OK;
  }
  return ToGrpc(MakeError(
      absl::StatusCode::kNotFound, reason::kInvalidRequest,
      fmt::format("checking the health of \"{}\": there is no such service here; ask for {}, {}, "
                  "{}NAME, or the empty name",
                  request->service(), kLivenessService, kGroupService, kCheckpointService)));
}

grpc::Status HealthServiceImpl::Watch(grpc::ServerContext* context,
                                      const HealthCheckRequest* request,
                                      grpc::ServerWriter<HealthCheckResponse>* writer) {
  {
    MutexLock lock(mutex_);
    if (watches_ >= kMaxHealthWatches) {
      return ToGrpc(MakeError(absl::StatusCode::kResourceExhausted, reason::kTooManyWaiting,
                              fmt::format("watching the health of \"{}\": {} watches are open; "
                                          "call Check now and then instead",
                                          request->service(), kMaxHealthWatches)));
    }
    ++watches_;
  }
  std::optional<ServingStatus> sent;
  while (!context->IsCancelled()) {
    const ServingStatus now = answer_(request->service());
    if (now != sent && !writer->Write(ToProto(now))) break;
    sent = now;
    if (Pause()) continue;
    if (sent != ServingStatus::kNotServing) writer->Write(ToProto(ServingStatus::kNotServing));
    break;
  }
  MutexLock lock(mutex_);
  --watches_;
  return grpc::Status::OK;
}

bool HealthServiceImpl::IsStopping() {
  MutexLock lock(mutex_);
  return stopping_;
}

bool HealthServiceImpl::Pause() {
  MutexLock lock(mutex_);
  return !changed_.WaitUntil(mutex_, Clock::now() + timing::kWatchPoll,
                             [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
}

void HealthServiceImpl::Stop() {
  MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
}

}  // namespace ckptd
