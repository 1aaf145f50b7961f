#include "server/rpc/grpc_endpoint.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>

#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "common/base/status.h"
#include "server/rpc/grpc_status.h"
#include "server/rpc/reflection_limit.h"

namespace ckptd {
namespace {

class Refusal final : public grpc::CallbackGenericService {
 public:
  explicit Refusal(grpc::Status why) : why_(std::move(why)) {}

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Reactor final : public grpc::ServerGenericBidiReactor {
     public:
      explicit Reactor(const grpc::Status& why) { Finish(why); }
      void OnDone() override { delete this; }
    };
    return new Reactor(why_);
  }

 private:
  const grpc::Status why_;
};

// gRPC checks a message's length only when all of it has arrived and is unpacked. Until then the
// quota limits it. A kilobyte may unpack to a megabyte, which no quota counts; so compression is
// refused.
void LimitMemory(grpc::ServerBuilder& builder, const GrpcEndpoint::Options& options) {
  builder.SetResourceQuota(*options.quota);
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  for (const auto packed : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
    builder.SetCompressionAlgorithmSupportStatus(packed, false);
  }
}

// Reflection is a plugin that every server of the process gets.
class WithoutPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

// Tells of each call once it has come. gRPC does not know its peer any earlier.
class CallWatch final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  using OnCall = std::function<void(std::string_view peer)>;
  explicit CallWatch(OnCall on_call) : on_call_(std::move(on_call)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new Watch(on_call_, *info->server_context());
  }

 private:
  class Watch final : public grpc::experimental::Interceptor {
   public:
    Watch(const OnCall& on_call, const grpc::ServerContextBase& context)
        : on_call_(on_call), context_(context) {}
    void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
      if (methods->QueryInterceptionHookPoint(
              grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
        on_call_(context_.peer());
      }
      methods->Proceed();
    }

   private:
    const OnCall& on_call_;
    const grpc::ServerContextBase& context_;
  };

  const OnCall on_call_;
};

// A caller that has gone without a word is noticed by pings, so that its watch ends.
void LimitProbes(grpc::ServerBuilder& builder) {
  builder.SetOption(std::make_unique<WithoutPlugins>());
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 8);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
}

void PrepareBuilder(grpc::ServerBuilder& builder, const GrpcEndpoint::Options& options) {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Never undone: otherwise the last channel would shut the library down, and wait up to 10 s
    // for a thread of its own that still polls.
    grpc_init();
  });
  LimitMemory(builder, options);
  if (options.only_probes) LimitProbes(builder);
  // A connection whose handshake does not end is closed. The limit leaves time for thousands of
  // ranks that join at once.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 30'000);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> limits;
  limits.push_back(MakeReflectionLimit());
  if (options.on_call != nullptr) limits.push_back(std::make_unique<CallWatch>(options.on_call));
  builder.experimental().SetInterceptorCreators(std::move(limits));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcEndpoint>> GrpcEndpoint::Start(
    const Options& options, const std::vector<grpc::Service*>& services) {
  std::unique_ptr<GrpcEndpoint> result(new GrpcEndpoint);
  CKPTD_RETURN_IF_ERROR(result->Build(options, services));
  return result;
}

absl::StatusOr<std::unique_ptr<GrpcEndpoint>> GrpcEndpoint::StartRefusing(const Options& options,
                                                                          const absl::Status& why) {
  std::unique_ptr<GrpcEndpoint> result(new GrpcEndpoint);
  result->refusal_ = std::make_unique<Refusal>(ToGrpc(why));
  CKPTD_RETURN_IF_ERROR(result->Build(options, {}));
  return result;
}

absl::Status GrpcEndpoint::Build(const Options& options,
                                 const std::vector<grpc::Service*>& services) {
  grpc::ServerBuilder builder;
  PrepareBuilder(builder, options);
  connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  if (refusal_ != nullptr) builder.RegisterCallbackGenericService(refusal_.get());
  server_ = builder.BuildAndStart();
  if (server_ != nullptr) return absl::OkStatus();
  return absl::InternalError(fmt::format("serving {}: gRPC does not start, its line above says why",
                                         options.address));
}

void GrpcEndpoint::Take(UniqueFd connection) {
  Connections::NewConnectionParameters taken;
  taken.fd = connection.Release();
  connections_->HandleNewConnection(&taken);
}

void GrpcEndpoint::Shutdown(std::chrono::milliseconds patience) {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + patience);
  server_->Wait();
  server_.reset();
}

GrpcEndpoint::~GrpcEndpoint() { Shutdown(std::chrono::seconds(1)); }

}  // namespace ckptd
