#include "server/rpc/reflection_limit.h"

#include <grpcpp/server_context.h>

#include <list>
#include <string_view>
#include <utility>

#include "common/base/mutex.h"

namespace ckptd {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

// In any version (v1alpha, v1).
bool IsReflection(std::string_view method) {
  return method.rfind("/grpc.reflection.", 0) == 0;
}

// The reflection streams of one server, the oldest first.
class Streams {
 public:
  void Began(grpc::ServerContextBase& context) {
    MutexLock lock(mutex_);
    open_.push_back(&context);
    if (open_.size() <= kMostReflections) return;
    // Cancelled under the lock, so that its handler cannot end and destroy the context before.
    open_.front()->TryCancel();
    open_.pop_front();
  }
  void Ended(grpc::ServerContextBase& context) {
    MutexLock lock(mutex_);
    open_.remove(&context);
  }

 private:
  Mutex mutex_;
  std::list<grpc::ServerContextBase*> open_ ABSL_GUARDED_BY(mutex_);
};

class StreamWatch final : public grpc::experimental::Interceptor {
 public:
  StreamWatch(std::shared_ptr<Streams> streams, grpc::ServerContextBase& context)
      : streams_(std::move(streams)), context_(context) {}
  ~StreamWatch() override { streams_->Ended(context_); }

  // TryCancel also comes here, with another hook point, while the lock is held.
  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      streams_->Began(context_);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      streams_->Ended(context_);
    }
    methods->Proceed();
  }

 private:
  const std::shared_ptr<Streams> streams_;
  grpc::ServerContextBase& context_;
};

class ReflectionLimit final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // Other calls are not intercepted.
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    if (!IsReflection(info->method())) return nullptr;
    return new StreamWatch(streams_, *info->server_context());
  }

 private:
  const std::shared_ptr<Streams> streams_ = std::make_shared<Streams>();
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeReflectionLimit() {
  return std::make_unique<ReflectionLimit>();
}

}  // namespace ckptd
