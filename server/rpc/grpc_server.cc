#include "server/rpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/fd_passing.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "server/rpc/reflection_limit.h"

namespace ckptd {
namespace {

constexpr char kUnixPrefix[] = "unix:";
// sizeof(sockaddr_un::sun_path) - 1.
constexpr size_t kMaxSocketPath = 107;
// Shares of this process's descriptors that may be open before a server refuses connections.
// Strangers are refused first.
constexpr double kAnybodyMayOpen = 0.75;
constexpr double kProbesMayOpen = 0.5;

absl::Status Busy(const std::string& address) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("listening on {}: another daemon has it; stop that one, or choose "
                               "another --job, --run-dir or --rendezvous",
                               address));
}

absl::StatusOr<FileLock> LockBeside(const std::string& path, const std::string& address) {
  if (path.size() > kMaxSocketPath) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kConfigInvalid,
                     fmt::format("listening on {}: the path has {} bytes, Unix sockets allow {}; "
                                 "choose a shorter --run-dir or --job",
                                 address, path.size(), kMaxSocketPath));
  }
  absl::StatusOr<FileLock> lock = FileLock::Take(path + ".lock");
  if (lock.status().code() == absl::StatusCode::kFailedPrecondition) return Busy(address);
  return lock;
}

// gRPC checks a message's length only when all of it has arrived and is unpacked. Until then the
// quota limits it. A kilobyte may unpack to a megabyte, which no quota counts; so compression is
// refused.
void LimitMemory(grpc::ServerBuilder& builder, const GrpcServer::Options& options) {
  grpc::ResourceQuota quota("ckptd");
  quota.SetMaxThreads(options.max_threads);
  if (options.max_held_bytes > 0) quota.Resize(options.max_held_bytes);
  builder.SetResourceQuota(quota);
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

// A caller that has gone without a word is noticed by pings, so that its watch ends.
void LimitProbes(grpc::ServerBuilder& builder) {
  builder.SetOption(std::make_unique<WithoutPlugins>());
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 8);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
}

void PrepareBuilder(grpc::ServerBuilder& builder, const GrpcServer::Options& options) {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Never undone: otherwise the last channel would shut the library down, and wait up to 10 s
    // for a thread of its own that still polls.
    grpc_init();
  });
  LimitMemory(builder, options);
  if (options.only_probes) LimitProbes(builder);
  // A connection that stays silent is closed. The limit leaves time for thousands of ranks that
  // join at once.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 30'000);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> limits;
  limits.push_back(MakeReflectionLimit());
  builder.experimental().SetInterceptorCreators(std::move(limits));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    Options options, const std::vector<grpc::Service*>& services) {
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  CKPTD_RETURN_IF_ERROR(result->Listen(options.address));
  grpc::ServerBuilder builder;
  PrepareBuilder(builder, options);
  result->connections_ = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials());
  for (grpc::Service* service : services) builder.RegisterService(service);
  result->server_ = builder.BuildAndStart();
  if (result->server_ == nullptr) {
    return absl::InternalError(fmt::format(
        "serving {}: gRPC does not start, its line above says why", options.address));
  }
  const int listener = result->Listener();
  CKPTD_ASSIGN_OR_RETURN(
      result->acceptor_,
      Acceptor::Start(listener, options.address,
                      options.only_probes ? kProbesMayOpen : kAnybodyMayOpen,
                      [listener, to = result->connections_.get()](UniqueFd connection) {
                        Connections::NewConnectionParameters taken;
                        taken.listener_fd = listener;
                        taken.fd = connection.Release();
                        to->HandleNewConnection(&taken);
                      }));
  return result;
}

absl::Status GrpcServer::Listen(const std::string& address) {
  if (address.rfind(kUnixPrefix, 0) != 0) {
    CKPTD_ASSIGN_OR_RETURN(tcp_, ListenTcp(address));
    return absl::OkStatus();
  }
  const std::string path = address.substr(sizeof(kUnixPrefix) - 1);
  CKPTD_ASSIGN_OR_RETURN(lock_, LockBeside(path, address));
  // The directory is 0700 already. The socket itself is made 0600, too.
  CKPTD_ASSIGN_OR_RETURN(unix_, UnixListener::OpenLocked(path, 0600));
  return absl::OkStatus();
}

void GrpcServer::Shutdown(std::chrono::milliseconds patience) {
  acceptor_.reset();
  unix_.Close();
  tcp_.socket.Reset();
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + patience);
  server_->Wait();
  server_.reset();
  lock_.Release();
}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::seconds(1)); }

}  // namespace ckptd
