#include "client/cpp/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <random>
#include <utility>

#include "ckptd/v1/checkpoint_service.grpc.pb.h"
#include "client/cpp/channel.h"
#include "client/cpp/convert.h"
#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/checkpoint/path_text.h"

namespace ckptd {
inline namespace client {
namespace {

using Stub = v1::CheckpointService::Stub;

constexpr std::string_view kNamePrefix = "checkpoints/";
constexpr int kLoadAttempts = 3;
constexpr Timeout kReleaseTimeout{1'000};
// For a load that cannot be watched.
constexpr Timeout kPollPeriod{500};
// More than any source has. Ends a daemon's endless pages.
constexpr int kMaxPages = 1 << 16;

std::string NewRequestId() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// All pages of one answer together have the time of one call.
class Pages {
 public:
  explicit Pages(Timeout timeout) : timeout_(timeout) {}
  // The time that is left for the next page.
  absl::StatusOr<Timeout> Next(std::string_view doing) {
    if (++count_ > kMaxPages) return BadAnswer("its pages do not end");
    const auto left = std::chrono::duration_cast<Timeout>(begun_ + timeout_ - Clock::now());
    if (left.count() > 0) return left;
    return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                     fmt::format("{}: {} pages came within {} s, and more are to come; allow it "
                                 "more time, or look at the daemon's log",
                                 doing, count_ - 1, static_cast<double>(timeout_.count()) / 1e3));
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Timeout timeout_;
  const Clock::time_point begun_ = Clock::now();
  int count_ = 0;
};

std::string RankList(const std::vector<int32_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

// If a watch runs out of time, the error says what the load was waiting for.
absl::Status WatchTimeout(const CheckpointInfo& last, const std::string& name, Timeout timeout) {
  std::string what = fmt::format("it is {}", NameOf(last.state));
  if (last.state == CheckpointState::kLoading) {
    what = fmt::format("it is {}, {} of {} bytes", NameOf(last.progress.stage),
                       last.progress.bytes_done, last.progress.bytes_total);
    if (!last.progress.waiting_ranks.empty()) {
      what += ", waiting for " + RankList(last.progress.waiting_ranks);
      if (!last.progress.no_memory.empty()) what += fmt::format(" ({})", last.progress.no_memory);
      if (!last.progress.conflict.empty()) what += fmt::format(" ({})", last.progress.conflict);
    }
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("watching {}: not finished after {} s, {}; the load goes on, watch "
                               "it again or look at the daemon's log",
                               name, timeout.count() / 1000, what),
                   {{"checkpoint", name}, {"stage", std::string(NameOf(last.progress.stage))}});
}

// The pauses of one call. A cancellation ends them.
class Pauses {
 public:
  explicit Pauses(CancelToken* cancel) : listening_(cancel, [this] { Cancel(); }) {}
  // False if it was cancelled.
  bool Wait(Timeout longest) {
    MutexLock lock(mutex_);
    return !changed_.WaitUntil(mutex_, std::chrono::steady_clock::now() + longest,
                               [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                 return cancelled_;
                               });
  }

 private:
  void Cancel() {
    MutexLock lock(mutex_);
    cancelled_ = true;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  const CancelToken::Listening listening_;  // last, because its constructor may call the listener
};

}  // namespace

struct Client::Impl {
  explicit Impl(Connection connected)
      : connection(std::move(connected)), stub(connection.channel) {}

  template <typename Request, typename Response>
  absl::Status Do(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response, std::string_view doing) {
    return Call(connection, stub, method, request, response, doing, connection.call_timeout);
  }
  template <typename Request, typename Response>
  absl::Status DoNext(Pages& pages,
                      grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                      const Request& request, Response& response, std::string_view doing) {
    CKPTD_ASSIGN_OR_RETURN(const Timeout left, pages.Next(doing));
    return Call(connection, stub, method, request, response, doing, left);
  }
  Pages NewPages() const { return Pages(connection.call_timeout); }
  absl::StatusOr<ShardTable> FetchTable(const std::string& name, v1::AcquireShardResponse& first);
  absl::StatusOr<LeasedSegments> Fetch(const std::string& name,
                                       const v1::AcquireShardResponse& acquired,
                                       const AcquireOptions& options, AttachRequest& attach);
  absl::StatusOr<Shard> Map(const std::string& name, v1::AcquireShardResponse& acquired,
                            LeasedSegments segments, const AttachRequest& attach);
  void Release(const std::string& lease);
  // The id of this client's last load of that checkpoint, with which the daemon holds it. Empty:
  // none.
  std::string LoadIdOf(const std::string& name) {
    MutexLock lock(mutex);
    const auto at = load_ids.find(name);
    return at == load_ids.end() ? "" : at->second;
  }

  // Follows a load through the daemon's stream. Sets `last` to the latest state.
  absl::Status Stream(const std::string& name, const WatchOptions& options, CheckpointInfo& last);
  // The same by polling.
  absl::Status Poll(const std::string& name, const WatchOptions& options, CheckpointInfo& last);

  Connection connection;
  Stub stub;
  Mutex mutex;
  std::map<std::string, std::string> load_ids ABSL_GUARDED_BY(mutex);  // by checkpoint
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;
Client::~Client() = default;

const Address& Client::address() const { return impl_->connection.address; }

absl::StatusOr<Client> Client::Connect(const ConnectOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(const Address address,
                         ResolveAddress(options.address, ProcessEnvironment()));
  CKPTD_ASSIGN_OR_RETURN(Connection connection, OpenConnection(WorkloadAddress(address), options));
  return Client(std::make_unique<Impl>(std::move(connection)));
}

absl::StatusOr<SourceInfo> Client::Inspect(const std::string& source) {
  v1::InspectCheckpointRequest request;
  request.set_source(TextOfPath(source));
  SourceInfo out;
  for (Pages pages = impl_->NewPages();;) {
    v1::InspectCheckpointResponse page;
    CKPTD_RETURN_IF_ERROR(impl_->DoNext(pages, &Stub::InspectCheckpoint, request, page,
                                        "inspecting " + source));
    CKPTD_RETURN_IF_ERROR(AppendSource(page, out));
    if (page.next_page_token().empty()) return out;
    request.set_page_token(page.next_page_token());
  }
}

absl::StatusOr<PlanSummary> Client::Plan(const PlanRequest& request) {
  CKPTD_RETURN_IF_ERROR(CheckLayout(request.layout));
  v1::PlanLoadResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::PlanLoad, ToProto(request), response,
                                  "planning a load of " + request.source));
  return FromProto(response);
}

absl::StatusOr<DeviceMap> Client::Plan(const DeviceMapRequest& request) {
  v1::PlanLoadResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::PlanLoad, ToProto(request), response,
                                  "planning devices for " + request.source));
  return FromProto(response.device_map());
}

absl::StatusOr<LoadResult> Client::Load(const LoadRequest& request) {
  CKPTD_RETURN_IF_ERROR(CheckLayout(request.layout));
  const std::string id = NewRequestId();
  const v1::LoadCheckpointRequest message = ToProto(request, id);
  const std::string doing = "loading " + request.source;
  const auto gone = std::chrono::system_clock::now() + impl_->connection.gone_timeout;
  absl::Status status;
  for (int attempt = 0; attempt < kLoadAttempts; ++attempt) {
    v1::LoadCheckpointResponse response;
    status = impl_->Do(&Stub::LoadCheckpoint, message, response, doing);
    if (status.ok()) {
      LoadResult out;
      out.checkpoint = FromProto(response.checkpoint());
      out.resident = response.resident();
      out.differs.assign(response.differs().begin(), response.differs().end());
      MutexLock lock(impl_->mutex);
      if (request.hold) impl_->load_ids[out.checkpoint.name] = id;
      return out;
    }
    if (ReasonOf(status) != reason::kDaemonUnreachable ||
        !impl_->connection.channel->WaitForConnected(gone)) {
      break;
    }
  }
  return status;
}

absl::Status Client::Impl::Stream(const std::string& name, const WatchOptions& options,
                                  CheckpointInfo& last) {
  v1::WatchCheckpointRequest request;
  request.set_name(name);
  request.set_load_request_id(LoadIdOf(name));
  grpc::ClientContext context;
  SetDeadline(context, options.timeout);
  grpc::Status status;
  {
    const CancelToken::Listening listening(options.cancel, [&context] { context.TryCancel(); });
    const auto reader = stub.WatchCheckpoint(&context, request);
    v1::WatchCheckpointResponse response;
    while (reader->Read(&response)) {
      last = FromProto(response.checkpoint());
      if (options.on_update) options.on_update(last);
    }
    status = reader->Finish();
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      status.error_details().empty()) {
    return WatchTimeout(last, name, options.timeout);
  }
  return StatusFromGrpc(status, "watching " + name, connection.address);
}

absl::Status Client::Impl::Poll(const std::string& name, const WatchOptions& options,
                                CheckpointInfo& last) {
  const auto begun = std::chrono::steady_clock::now();
  Pauses pauses(options.cancel);
  v1::GetCheckpointRequest request;
  request.set_name(name);
  while (true) {
    const auto left = options.timeout - std::chrono::duration_cast<Timeout>(
                                            std::chrono::steady_clock::now() - begun);
    if (left.count() <= 0) return WatchTimeout(last, name, options.timeout);
    v1::GetCheckpointResponse response;
    CKPTD_RETURN_IF_ERROR(Call(connection, stub, &Stub::GetCheckpoint, request, response,
                               "watching " + name, std::min(left, connection.call_timeout)));
    last = FromProto(response.checkpoint());
    if (options.on_update) options.on_update(last);
    if (last.state != CheckpointState::kLoading) return absl::OkStatus();
    if (!pauses.Wait(std::min(left, kPollPeriod))) {
      return absl::CancelledError("watching " + name + ": cancelled");
    }
  }
}

absl::StatusOr<CheckpointInfo> Client::Watch(const std::string& name, const WatchOptions& options) {
  CheckpointInfo last;
  last.name = name;
  absl::Status status = impl_->Stream(name, options, last);
  if (ReasonOf(status) == reason::kTooManyWaiting) status = impl_->Poll(name, options, last);
  CKPTD_RETURN_IF_ERROR(status);
  if (last.state == CheckpointState::kLoading || last.state == CheckpointState::kUnspecified) {
    return BadAnswer(fmt::format("the watch of {} ended before the load did", name));
  }
  return last;
}

absl::StatusOr<CheckpointInfo> Client::Get(const std::string& name) {
  v1::GetCheckpointRequest request;
  request.set_name(name);
  v1::GetCheckpointResponse response;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::GetCheckpoint, request, response, "looking up " + name));
  return FromProto(response.checkpoint());
}

absl::StatusOr<std::vector<CheckpointInfo>> Client::List() {
  v1::ListCheckpointsRequest request;
  std::vector<CheckpointInfo> out;
  for (Pages pages = impl_->NewPages();;) {
    v1::ListCheckpointsResponse page;
    CKPTD_RETURN_IF_ERROR(
        impl_->DoNext(pages, &Stub::ListCheckpoints, request, page, "listing checkpoints"));
    for (const auto& checkpoint : page.checkpoints()) out.push_back(FromProto(checkpoint));
    if (page.next_page_token().empty()) return out;
    request.set_page_token(page.next_page_token());
  }
}

absl::StatusOr<ShardTable> Client::Impl::FetchTable(const std::string& name,
                                                    v1::AcquireShardResponse& first) {
  ShardTable table;
  CKPTD_RETURN_IF_ERROR(AppendTensors(first.tensors(), first.slab_bytes(), table));
  v1::ListShardTensorsRequest request;
  request.set_name(name);
  request.set_page_token(first.next_page_token());
  for (Pages pages = NewPages(); !request.page_token().empty();) {
    v1::ListShardTensorsResponse page;
    CKPTD_RETURN_IF_ERROR(DoNext(pages, &Stub::ListShardTensors, request, page,
                                 "listing the tensors of " + name));
    CKPTD_RETURN_IF_ERROR(AppendTensors(page.tensors(), first.slab_bytes(), table));
    request.set_page_token(page.next_page_token());
  }
  if (table.tensors.size() != first.tensor_count()) {
    return BadAnswer(fmt::format("it announced {} tensors and listed {}", first.tensor_count(),
                                 table.tensors.size()));
  }
  return table;
}

// Sends the token. If the daemon answers, the connection is the lease.
absl::StatusOr<LeasedSegments> Client::Impl::Fetch(const std::string& name,
                                                   const v1::AcquireShardResponse& acquired,
                                                   const AcquireOptions& options,
                                                   AttachRequest& attach) {
  // A lease's name begins with its checkpoint, so another name means other memory.
  if (!acquired.lease().starts_with(name + "/leases/")) {
    return BadAnswer(fmt::format("asked for {} it leases {}", name, acquired.lease()));
  }
  CKPTD_ASSIGN_OR_RETURN(attach, ToAttachRequest(acquired));
  if (attach.mode != options.mode) {
    return BadAnswer(fmt::format("it lends {} as {}, not as {}", name, NameOf(attach.mode),
                                 NameOf(options.mode)));
  }
  attach.populate = options.populate;
  attach.timeout = connection.gone_timeout;
  if (!attach.device_uuid.empty()) CKPTD_RETURN_IF_ERROR(CheckDeviceVisible(attach.device_uuid));
  return FetchSegments(attach);
}

absl::StatusOr<Shard> Client::Impl::Map(const std::string& name,
                                        v1::AcquireShardResponse& acquired,
                                        LeasedSegments segments, const AttachRequest& attach) {
  CKPTD_ASSIGN_OR_RETURN(ShardTable table, FetchTable(name, acquired));
  CKPTD_ASSIGN_OR_RETURN(Attached attached, MapSegments(std::move(segments), attach));
  return Shard::Create(std::move(attached), std::move(table), attach.mode, acquired.lease());
}

// Tells the daemon, so that it need not wait for its token to expire.
void Client::Impl::Release(const std::string& lease) {
  v1::ReleaseShardRequest request;
  request.set_lease(lease);
  v1::ReleaseShardResponse response;
  Call(connection, stub, &Stub::ReleaseShard, request, response, "releasing a lease",
       kReleaseTimeout)
      .IgnoreError();
}

absl::StatusOr<Shard> Client::Acquire(const std::string& name, const AcquireOptions& options) {
  v1::AcquireShardRequest request;
  request.set_name(name);
  request.set_mode(ToProto(options.mode));
  request.set_load_request_id(impl_->LoadIdOf(name));
  request.add_accepted_kinds(v1::HANDLE_KIND_MEMFD);
  if (HasDeviceMemory()) {
    request.add_accepted_kinds(v1::HANDLE_KIND_VMM_FD);
    request.add_accepted_kinds(v1::HANDLE_KIND_CUDA_IPC);
  }
  v1::AcquireShardResponse acquired;
  CKPTD_RETURN_IF_ERROR(impl_->Do(&Stub::AcquireShard, request, acquired, "acquiring " + name));
  const std::string doing = "attaching to " + name;
  AttachRequest attach;
  absl::StatusOr<LeasedSegments> segments = impl_->Fetch(name, acquired, options, attach);
  if (!segments.ok()) {
    impl_->Release(acquired.lease());
    return WithContext(segments.status(), doing);
  }
  // The token expires soon, so it is used before further pages are fetched.
  absl::StatusOr<Shard> shard = impl_->Map(name, acquired, *std::move(segments), attach);
  if (!shard.ok()) return WithContext(shard.status(), doing);
  return shard;
}

absl::StatusOr<VerifyResult> Client::Verify(const std::string& name, Timeout timeout) {
  v1::VerifyCheckpointRequest request;
  request.set_name(name);
  v1::VerifyCheckpointResponse response;
  CKPTD_RETURN_IF_ERROR(Call(impl_->connection, impl_->stub, &Stub::VerifyCheckpoint, request,
                             response, "verifying " + name, timeout));
  return FromProto(response);
}

std::string CheckpointName(std::string_view id_or_name) {
  const bool full = id_or_name.substr(0, kNamePrefix.size()) == kNamePrefix;
  return full ? std::string(id_or_name) : std::string(kNamePrefix) + std::string(id_or_name);
}

}  // namespace client
}  // namespace ckptd
