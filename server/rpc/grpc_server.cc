#include "server/rpc/grpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>

#include <fmt/format.h>

#include "common/base/fd_passing.h"
#include "common/base/percent.h"
#include "common/base/reasons.h"
#include "common/base/status.h"

namespace ckptd {
namespace {

constexpr char kUnixPrefix[] = "unix:";
// sizeof(sockaddr_un::sun_path) - 1.
constexpr size_t kMaxSocketPath = 107;

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

// gRPC says in a log line of its own why it does not listen.
absl::Status CannotListen(const std::string& address, const std::string& path) {
  if (path.empty()) return Busy(address);
  struct statvfs room = {};
  if (::statvfs(path.substr(0, path.rfind('/')).c_str(), &room) == 0 &&
      (room.f_favail == 0 || room.f_bavail == 0)) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kNoMemory,
                     fmt::format("listening on {}: its file system is full; free room there, or "
                                 "choose another --run-dir",
                                 address));
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kConfigInvalid,
                   fmt::format("listening on {}: no socket could be made there, gRPC's line above "
                               "says why; choose another --run-dir",
                               address));
}

// gRPC asks whether a message is too long when all of it is here and unpacked; until
// then the quota bounds it. A kilobyte may unpack to a megabyte, which no quota counts.
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

void PrepareBuilder(grpc::ServerBuilder& builder, const GrpcServer::Options& options) {
  static std::once_flag once;
  std::call_once(once, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    // Never undone: the last channel to go would shut the library down and wait up to
    // 10 s for a thread of its own that still polls for writes long done.
    grpc_init();
  });
  LimitMemory(builder, options);
  // SO_REUSEPORT would let a second daemon share the port silently.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    Options options, const std::vector<grpc::Service*>& services) {
  std::unique_ptr<GrpcServer> result(new GrpcServer);
  std::string target = options.address;
  const bool is_unix = options.address.rfind(kUnixPrefix, 0) == 0;
  if (is_unix) {
    result->path_ = options.address.substr(sizeof(kUnixPrefix) - 1);
    CKPTD_ASSIGN_OR_RETURN(result->lock_, LockBeside(result->path_, options.address));
    CKPTD_RETURN_IF_ERROR(RemoveStaleSocket(result->path_));
    target = UnixTarget(result->path_);
  }
  grpc::ServerBuilder builder;
  PrepareBuilder(builder, options);
  builder.AddListeningPort(
      target,
      options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials(),
      &result->port_);
  for (grpc::Service* service : services) builder.RegisterService(service);
  // The directory is 0700 already; the socket itself is made 0600, too. The
  // umask is process-wide: servers are started before threads that make files.
  const mode_t before = ::umask(0177);
  result->server_ = builder.BuildAndStart();
  ::umask(before);
  if (result->server_ == nullptr || (!is_unix && result->port_ == 0)) {
    return CannotListen(options.address, result->path_);
  }
  if (is_unix) result->file_ = FileAt::Of(result->path_);
  return result;
}

void GrpcServer::SetServing(bool serving) {
  if (auto* health = server_->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

void GrpcServer::Shutdown(std::chrono::milliseconds patience) {
  if (server_ == nullptr) return;
  // gRPC removes what lies at its path. Where the folder was removed and made again, that is
  // the socket of another daemon, which is kept by another name meanwhile.
  const std::string kept = path_ + ".kept";
  const bool others = file_.has_value() && FileAt::Of(path_) != file_ &&
                      ::link(path_.c_str(), kept.c_str()) == 0;
  server_->Shutdown(std::chrono::system_clock::now() + patience);
  server_->Wait();
  server_.reset();
  if (others) ::rename(kept.c_str(), path_.c_str());
  lock_.Release();
}

GrpcServer::~GrpcServer() { Shutdown(std::chrono::seconds(1)); }

}  // namespace ckptd
