#include "client/cpp/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <utility>

#include "ckptd/v1/checkpoint_service.grpc.pb.h"
#include "client/cpp/channel.h"
#include "client/cpp/convert.h"
#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/source/path_text.h"

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

// A path may hold any bytes, and a message only UTF-8.
v1::LoadSpec Sendable(v1::LoadSpec spec) {
  spec.set_source(TextOfPath(spec.source()));
  return spec;
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

// If a watch runs out of time, the error says what the load was waiting for.
absl::Status WatchTimeout(const v1::Checkpoint& last, const std::string& name, Timeout timeout) {
  const v1::Progress& progress = last.progress();
  std::string what = "it is " + NameOf(last.state());
  if (last.state() == v1::Checkpoint::STATE_LOADING) {
    what = fmt::format("it is {}, {} of {} bytes", NameOf(progress.stage()), progress.bytes_done(),
                       progress.bytes_total());
    if (progress.waiting_ranks_size() > 0) {
      what += fmt::format(", waiting for rank{} {}", progress.waiting_ranks_size() == 1 ? "" : "s",
                          fmt::join(progress.waiting_ranks(), ", "));
      if (!progress.no_memory().empty()) what += fmt::format(" ({})", progress.no_memory());
      if (!progress.conflict().empty()) what += fmt::format(" ({})", progress.conflict());
    }
  }
  return MakeError(absl::StatusCode::kDeadlineExceeded, reason::kDeadline,
                   fmt::format("watching {}: not finished after {} s, {}; the load goes on, watch "
                               "it again or look at the daemon's log",
                               name, timeout.count() / 1000, what),
                   {{"checkpoint", name}, {"stage", NameOf(progress.stage())}});
}

}  // namespace

struct Client::Impl {
  explicit Impl(Connection connected)
      : connection(std::move(connected)), stub(connection.channel) {}

  template <typename Request, typename Response>
  absl::StatusOr<Response> Do(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, std::string_view doing) {
    return Call(connection, stub, method, request, doing, connection.call_timeout);
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> DoNext(Pages& pages,
                                  grpc::Status (Stub::*method)(grpc::ClientContext*,
                                                               const Request&, Response*),
                                  const Request& request, std::string_view doing) {
    CKPTD_ASSIGN_OR_RETURN(const Timeout left, pages.Next(doing));
    return Call(connection, stub, method, request, doing, left);
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
  absl::Status Stream(const std::string& name, const WatchOptions& options, v1::Checkpoint& last);
  // The same by polling.
  absl::Status Poll(const std::string& name, const WatchOptions& options, v1::Checkpoint& last);

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

absl::StatusOr<SourceInfo> Client::Inspect(const std::string& source, bool values,
                                           const std::string& view) {
  v1::InspectCheckpointRequest request;
  request.set_source(TextOfPath(source));
  request.set_values(values);
  request.set_view(view);
  SourceInfo out;
  for (Pages pages = impl_->NewPages();;) {
    CKPTD_ASSIGN_OR_RETURN(
        const v1::InspectCheckpointResponse page,
        impl_->DoNext(pages, &Stub::InspectCheckpoint, request, "inspecting " + source));
    CKPTD_RETURN_IF_ERROR(AppendSource(page, out));
    if (page.next_page_token().empty()) return out;
    request.set_page_token(page.next_page_token());
  }
}

absl::StatusOr<v1::PlanLoadResponse> Client::Plan(const v1::LoadSpec& spec) {
  v1::PlanLoadRequest request;
  *request.mutable_spec() = Sendable(spec);
  return impl_->Do(&Stub::PlanLoad, request, "planning a load of " + spec.source());
}

absl::StatusOr<v1::DeviceMap> Client::PlanDevices(const v1::PlanLoadRequest& request) {
  v1::PlanLoadRequest sent = request;
  *sent.mutable_spec() = Sendable(request.spec());
  CKPTD_ASSIGN_OR_RETURN(
      v1::PlanLoadResponse response,
      impl_->Do(&Stub::PlanLoad, sent, "planning devices for " + request.spec().source()));
  return std::move(*response.mutable_device_map());
}

absl::StatusOr<v1::LoadCheckpointResponse> Client::Load(const v1::LoadSpec& spec,
                                                        const LoadOptions& options) {
  v1::LoadCheckpointRequest request;
  *request.mutable_spec() = Sendable(spec);
  request.set_request_id(NewRequestId());
  request.set_no_hold(!options.hold);
  const std::string doing = "loading " + spec.source();
  const auto gone = std::chrono::system_clock::now() + impl_->connection.gone_timeout;
  for (int attempt = 1;; ++attempt) {
    auto response = impl_->Do(&Stub::LoadCheckpoint, request, doing);
    if (response.ok() && options.hold) {
      MutexLock lock(impl_->mutex);
      impl_->load_ids[response->checkpoint().name()] = request.request_id();
    }
    if (response.ok() || attempt == kLoadAttempts ||
        ReasonOf(response.status()) != reason::kDaemonUnreachable ||
        !impl_->connection.channel->WaitForConnected(gone)) {
      return response;
    }
  }
}

absl::Status Client::Impl::Stream(const std::string& name, const WatchOptions& options,
                                  v1::Checkpoint& last) {
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
      last = response.checkpoint();
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
                                v1::Checkpoint& last) {
  const auto begun = std::chrono::steady_clock::now();
  Pauses pauses(options.cancel);
  v1::GetCheckpointRequest request;
  request.set_name(name);
  while (true) {
    const auto left = options.timeout - std::chrono::duration_cast<Timeout>(
                                            std::chrono::steady_clock::now() - begun);
    if (left.count() <= 0) return WatchTimeout(last, name, options.timeout);
    CKPTD_ASSIGN_OR_RETURN(const v1::GetCheckpointResponse response,
                           Call(connection, stub, &Stub::GetCheckpoint, request,
                                "watching " + name, std::min(left, connection.call_timeout)));
    last = response.checkpoint();
    if (options.on_update) options.on_update(last);
    if (last.state() != v1::Checkpoint::STATE_LOADING) return absl::OkStatus();
    if (!pauses.Wait(std::min(left, kPollPeriod))) {
      return absl::CancelledError("watching " + name + ": cancelled");
    }
  }
}

absl::StatusOr<v1::Checkpoint> Client::Watch(const std::string& name, const WatchOptions& options) {
  v1::Checkpoint last;
  last.set_name(name);
  absl::Status status = impl_->Stream(name, options, last);
  if (ReasonOf(status) == reason::kTooManyWaiting) status = impl_->Poll(name, options, last);
  CKPTD_RETURN_IF_ERROR(status);
  if (last.state() == v1::Checkpoint::STATE_LOADING ||
      last.state() == v1::Checkpoint::STATE_UNSPECIFIED ||
      !v1::Checkpoint::State_IsValid(last.state())) {
    return BadAnswer(fmt::format("the watch of {} ended before the load did", name));
  }
  return last;
}

absl::StatusOr<v1::Checkpoint> Client::Get(const std::string& name) {
  v1::GetCheckpointRequest request;
  request.set_name(name);
  CKPTD_ASSIGN_OR_RETURN(v1::GetCheckpointResponse response,
                         impl_->Do(&Stub::GetCheckpoint, request, "looking up " + name));
  return std::move(*response.mutable_checkpoint());
}

absl::StatusOr<v1::ListCheckpointsResponse> Client::List() {
  v1::ListCheckpointsRequest request;
  v1::ListCheckpointsResponse out;
  for (Pages pages = impl_->NewPages();;) {
    CKPTD_ASSIGN_OR_RETURN(
        const v1::ListCheckpointsResponse page,
        impl_->DoNext(pages, &Stub::ListCheckpoints, request, "listing checkpoints"));
    out.MergeFrom(page);
    request.set_page_token(page.next_page_token());
    if (request.page_token().empty()) break;
  }
  out.clear_next_page_token();
  return out;
}

absl::StatusOr<ShardTable> Client::Impl::FetchTable(const std::string& name,
                                                    v1::AcquireShardResponse& first) {
  ShardTable table;
  CKPTD_RETURN_IF_ERROR(AppendTensors(first.tensors(), first.slab_bytes(), table));
  v1::ListShardTensorsRequest request;
  request.set_name(name);
  request.set_page_token(first.next_page_token());
  for (Pages pages = NewPages(); !request.page_token().empty();) {
    CKPTD_ASSIGN_OR_RETURN(
        const v1::ListShardTensorsResponse page,
        DoNext(pages, &Stub::ListShardTensors, request, "listing the tensors of " + name));
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
  Call(connection, stub, &Stub::ReleaseShard, request, "releasing a lease", kReleaseTimeout)
      .IgnoreError();
}

absl::StatusOr<Shard> Client::Acquire(const std::string& name, const AcquireOptions& options) {
  v1::AcquireShardRequest request;
  request.set_name(name);
  request.set_mode(static_cast<v1::AttachMode>(options.mode));
  request.set_load_request_id(impl_->LoadIdOf(name));
  request.add_accepted_kinds(v1::HANDLE_KIND_MEMFD);
  if (HasDeviceMemory()) {
    request.add_accepted_kinds(v1::HANDLE_KIND_VMM_FD);
    request.add_accepted_kinds(v1::HANDLE_KIND_CUDA_IPC);
  }
  CKPTD_ASSIGN_OR_RETURN(v1::AcquireShardResponse acquired,
                         impl_->Do(&Stub::AcquireShard, request, "acquiring " + name));
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

absl::StatusOr<v1::VerifyCheckpointResponse> Client::Verify(const std::string& name,
                                                            Timeout timeout) {
  v1::VerifyCheckpointRequest request;
  request.set_name(name);
  auto response = Call(impl_->connection, impl_->stub, &Stub::VerifyCheckpoint, request,
                       "verifying " + name, timeout);
  // An older daemon does not send the files.
  while (response.ok() && response->files_size() < response->mismatched_size()) {
    response->add_files();
  }
  return response;
}

std::string CheckpointName(std::string_view id_or_name) {
  const bool full = id_or_name.substr(0, kNamePrefix.size()) == kNamePrefix;
  return full ? std::string(id_or_name) : std::string(kNamePrefix) + std::string(id_or_name);
}

}  // namespace client
}  // namespace ckptd
