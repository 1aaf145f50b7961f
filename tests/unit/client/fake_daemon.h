// A fake daemon with one shard: both services on Unix sockets in a temporary folder, and the fd
// socket. Tests change its answers before they call.
#ifndef CKPTD_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
#define CKPTD_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckptd/v1/admin_service.grpc.pb.h"
#include "ckptd/v1/checkpoint_service.grpc.pb.h"
#include "ckptd/v1/error.pb.h"
#include "common/base/digest.h"
#include "tests/testing/temp_folder.h"
#include "tests/unit/client/fake_fd_socket.h"

namespace ckptd::fake {

// An error as the daemon sends it.
inline grpc::Status DaemonError(grpc::StatusCode code, const std::string& reason,
                                const std::string& message) {
  v1::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("ckptd");
  (*info.mutable_metadata())["tensor"] = "model.weight";
  v1::ErrorStatus status;
  status.set_code(code);
  status.set_message(message);
  auto& any = *status.add_details();
  any.set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
  any.set_value(info.SerializeAsString());
  return {code, message, status.SerializeAsString()};
}

// Answers that a test may change before the first call.
struct FakeAnswers {
  v1::LoadCheckpointResponse load;
  std::vector<v1::Checkpoint> watch;                            // sent one after the other
  std::function<void(grpc::ServerContext*)> before_watch_ends;  // may block
  grpc::Status watch_error = grpc::Status::OK;
  std::vector<v1::Checkpoint> list;
  std::vector<v1::Checkpoint> get;        // one after the other; the last answer is an ACTIVE one
  grpc::Status error = grpc::Status::OK;  // of every call, unless OK
  bool cancelled = false;                 // what unloading reports
  int lose_loads = 0;                     // this many loads fail with UNAVAILABLE
  v1::VerifyCheckpointResponse verify;
  v1::InspectCheckpointResponse inspect;
  v1::PlanLoadResponse plan;
  v1::AcquireShardResponse acquire;
  std::vector<v1::ListShardTensorsResponse> further_pages;
  v1::GetDaemonInfoResponse info;
  v1::ListLeasesResponse leases;
  v1::TrimMemoryResponse trim;
  uint32_t remaining_leases = 0;
};

class FakeDaemon : public v1::CheckpointService::Service, public v1::AdminService::Service {
 public:
  FakeDaemon() : fd_socket_(dir_ / "fd.sock") { MakeShard(); }
  ~FakeDaemon() override { Stop(); }

  FakeAnswers answers;
  std::vector<UniqueFd> segments;  // handed out on the fd socket
  // The latest requests.
  v1::InspectCheckpointRequest last_inspect;
  v1::PlanLoadRequest last_plan;
  v1::LoadCheckpointRequest last_load;
  v1::AcquireShardRequest last_acquire;
  std::vector<std::string> load_ids;
  std::vector<std::string> released;
  std::vector<std::string> admin_calls;

  std::string socket() const { return dir_ / "rank-0.sock"; }
  FakeFdSocket& fd_socket() { return fd_socket_; }
  const TempFolder& dir() const { return dir_; }

  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket(), grpc::InsecureServerCredentials());
    builder.RegisterService(static_cast<v1::CheckpointService::Service*>(this));
    server_ = builder.BuildAndStart();
    grpc::ServerBuilder admin;
    admin.AddListeningPort("unix:" + (dir_ / "rank-0.admin.sock"),
                           grpc::InsecureServerCredentials());
    admin.RegisterService(static_cast<v1::AdminService::Service*>(this));
    admin_server_ = admin.BuildAndStart();
  }

  void Stop() {
    if (server_) server_->Shutdown(std::chrono::system_clock::now());
    if (admin_server_) admin_server_->Shutdown(std::chrono::system_clock::now());
  }

  static v1::Checkpoint MakeCheckpoint(v1::Checkpoint::State state) {
    v1::Checkpoint out;
    out.set_name("checkpoints/ab12");
    out.set_source("/models/tiny");
    out.set_state(state);
    out.set_layout("fsdp:2");
    out.set_intended_mode(v1::ATTACH_MODE_SHARED);
    out.set_world_size(2);
    out.set_slab_bytes(1'500'000'000);
    out.set_tensor_count(3);
    out.set_digests(true);
    out.mutable_create_time()->set_seconds(1'700'000'000);
    out.mutable_progress()->set_slowest_rank(-1);
    return out;
  }

  // The bytes of the shard: 16 floats, 100 bytes, an empty tensor.
  static std::string SlabBytes() {
    std::string bytes(8192, '\0');
    for (size_t i = 0; i < 64; ++i) bytes[i] = static_cast<char>(i + 1);
    for (size_t i = 0; i < 100; ++i) bytes[4096 + i] = static_cast<char>(200 - i);
    return bytes;
  }

 private:
  void MakeShard() {
    const std::string bytes = SlabBytes();
    segments.push_back(MemoryOf(bytes.substr(0, 4096)));
    segments.push_back(MemoryOf(bytes.substr(4096)));
    v1::AcquireShardResponse& out = answers.acquire;
    out.set_lease("checkpoints/ab12/leases/1");
    out.set_token(kToken);
    out.set_mode(v1::ATTACH_MODE_SHARED);
    out.set_slab_bytes(bytes.size());
    out.set_tensor_count(3);
    out.mutable_memfd()->set_fd_socket(fd_socket_.path());
    out.mutable_memfd()->add_segment_bytes(4096);
    out.mutable_memfd()->add_segment_bytes(4096);
    AddTensor("b", v1::DTYPE_F32, {4, 4}, 0, 64, 128);
    AddTensor("a", v1::DTYPE_U8, {100}, 4096, 100, 100);
    AddTensor("empty", v1::DTYPE_F32, {0, 4}, 1024, 0, 0);
    out.mutable_tensors()->add_alias_names("tied");
    out.mutable_tensors()->add_alias_tensors(1);
    fd_socket_.set_answer([this](int socket) { SendSegments(socket); });
  }

  void AddTensor(const std::string& name, v1::Dtype dtype, const std::vector<uint64_t>& shape,
                 uint64_t offset, uint64_t bytes, uint64_t padded) {
    v1::TensorTable& table = *answers.acquire.mutable_tensors();
    table.add_names(name);
    table.add_dtypes(dtype);
    table.add_ranks_of_shape(static_cast<uint32_t>(shape.size()));
    table.mutable_dims()->Add(shape.begin(), shape.end());
    table.add_offsets(offset);
    table.add_bytes(bytes);
    table.add_padded_bytes(padded);
    const std::string content = SlabBytes().substr(offset, bytes);
    table.add_digests(TensorDigest(std::as_bytes(std::span(content))));
  }

  // One descriptor per message, so that clients must take several.
  void SendSegments(int socket) const {
    for (size_t i = 0; i < segments.size(); ++i) {
      const auto remaining = static_cast<uint32_t>(segments.size() - i - 1);
      FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 1, remaining), {segments[i].get()});
    }
    if (segments.empty()) FakeFdSocket::Send(socket, FakeFdSocket::Header(0, 0, 0));
  }

  grpc::Status InspectCheckpoint(grpc::ServerContext*, const v1::InspectCheckpointRequest* request,
                                 v1::InspectCheckpointResponse* response) override {
    last_inspect = *request;
    *response = answers.inspect;
    return answers.error;
  }
  grpc::Status PlanLoad(grpc::ServerContext*, const v1::PlanLoadRequest* request,
                        v1::PlanLoadResponse* response) override {
    last_plan = *request;
    *response = answers.plan;
    return answers.error;
  }
  grpc::Status LoadCheckpoint(grpc::ServerContext*, const v1::LoadCheckpointRequest* request,
                              v1::LoadCheckpointResponse* response) override {
    last_load = *request;
    load_ids.push_back(request->request_id());
    if (answers.lose_loads > 0) {
      --answers.lose_loads;
      return {grpc::StatusCode::UNAVAILABLE, "connection lost"};
    }
    *response = answers.load;
    return answers.error;
  }
  grpc::Status WatchCheckpoint(grpc::ServerContext* context, const v1::WatchCheckpointRequest*,
                               grpc::ServerWriter<v1::WatchCheckpointResponse>* writer) override {
    for (const v1::Checkpoint& checkpoint : answers.watch) {
      v1::WatchCheckpointResponse response;
      *response.mutable_checkpoint() = checkpoint;
      writer->Write(response);
    }
    if (answers.before_watch_ends) answers.before_watch_ends(context);
    return answers.watch_error.ok() ? answers.error : answers.watch_error;
  }
  grpc::Status GetCheckpoint(grpc::ServerContext*, const v1::GetCheckpointRequest*,
                             v1::GetCheckpointResponse* response) override {
    *response->mutable_checkpoint() = MakeCheckpoint(v1::Checkpoint::STATE_ACTIVE);
    if (!answers.get.empty()) {
      *response->mutable_checkpoint() = answers.get.front();
      if (answers.get.size() > 1) answers.get.erase(answers.get.begin());
    }
    return answers.error;
  }
  // One checkpoint per page.
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override {
    const int at = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    const int count = static_cast<int>(answers.list.size());
    if (at < count) *response->add_checkpoints() = answers.list[static_cast<size_t>(at)];
    if (at + 1 < count) response->set_next_page_token(std::to_string(at + 1));
    return answers.error;
  }
  grpc::Status AcquireShard(grpc::ServerContext*, const v1::AcquireShardRequest* request,
                            v1::AcquireShardResponse* response) override {
    last_acquire = *request;
    *response = answers.acquire;
    return answers.error;
  }
  grpc::Status ListShardTensors(grpc::ServerContext*, const v1::ListShardTensorsRequest* request,
                                v1::ListShardTensorsResponse* response) override {
    const auto at = static_cast<size_t>(std::stoi(request->page_token()));
    *response = answers.further_pages.at(at);
    return answers.error;
  }
  grpc::Status ReleaseShard(grpc::ServerContext*, const v1::ReleaseShardRequest* request,
                            v1::ReleaseShardResponse*) override {
    released.push_back(request->lease());
    return grpc::Status::OK;
  }
  grpc::Status VerifyCheckpoint(grpc::ServerContext*, const v1::VerifyCheckpointRequest*,
                                v1::VerifyCheckpointResponse* response) override {
    *response = answers.verify;
    return answers.error;
  }

  grpc::Status UnloadCheckpoint(grpc::ServerContext*, const v1::UnloadCheckpointRequest* request,
                                v1::UnloadCheckpointResponse* response) override {
    admin_calls.push_back("unload " + request->name() + (request->force() ? " force" : "") +
                          (request->idle() ? " idle" : ""));
    response->set_freed_bytes(1'500'000'000);
    response->set_cancelled(answers.cancelled);
    return answers.error;
  }
  grpc::Status PinCheckpoint(grpc::ServerContext*, const v1::PinCheckpointRequest* request,
                             v1::PinCheckpointResponse* response) override {
    admin_calls.push_back("pin " + request->name() + (request->pinned() ? " on" : " off"));
    *response->mutable_checkpoint() = MakeCheckpoint(v1::Checkpoint::STATE_ACTIVE);
    response->mutable_checkpoint()->set_pinned(request->pinned());
    return answers.error;
  }
  grpc::Status ListLeases(grpc::ServerContext*, const v1::ListLeasesRequest*,
                          v1::ListLeasesResponse* response) override {
    *response = answers.leases;
    return answers.error;
  }
  grpc::Status GetDaemonInfo(grpc::ServerContext*, const v1::GetDaemonInfoRequest*,
                             v1::GetDaemonInfoResponse* response) override {
    *response = answers.info;
    return answers.error;
  }
  grpc::Status DrainDaemon(grpc::ServerContext*, const v1::DrainDaemonRequest* request,
                           v1::DrainDaemonResponse* response) override {
    admin_calls.push_back("drain " + std::to_string(request->timeout().seconds()));
    response->set_remaining_leases(answers.remaining_leases);
    return answers.error;
  }
  grpc::Status TrimMemory(grpc::ServerContext*, const v1::TrimMemoryRequest*,
                          v1::TrimMemoryResponse* response) override {
    admin_calls.push_back("trim");
    *response = answers.trim;
    return answers.error;
  }
  grpc::Status SetLogLevel(grpc::ServerContext*, const v1::SetLogLevelRequest* request,
                           v1::SetLogLevelResponse* response) override {
    admin_calls.push_back("log-level " + request->level());
    response->set_previous_level("info");
    return answers.error;
  }

  TempFolder dir_;
  FakeFdSocket fd_socket_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::Server> admin_server_;
};

}  // namespace ckptd::fake

#endif  // CKPTD_TESTS_UNIT_CLIENT_FAKE_DAEMON_H_
