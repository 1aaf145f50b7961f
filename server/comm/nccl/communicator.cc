#include "server/comm/nccl/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/reasons.h"
#include "common/base/status.h"
#include "common/cuda/stream.h"

namespace ckptd {
namespace {

// Kernels take microseconds, so waits poll often at first. Joining and connecting take longer, so
// they poll seldom later.
constexpr int kShortPolls = 500;
constexpr std::chrono::microseconds kLongPoll{1000};

ncclConfig_t Config(const CommunicatorOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // otherwise no call could have a deadline
  config.minCTAs = 1;
  config.maxCTAs = options.max_ctas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  config.commName = options.name.c_str();
  config.collnetEnable = 0;
#endif
  return config;
}

absl::Status CheckOptions(const CommunicatorOptions& options) {
  std::string wrong;
  if (options.world_size < 2) {
    wrong = fmt::format("a group of {} does not need NCCL", options.world_size);
  } else if (options.rank >= options.world_size) {
    wrong = fmt::format("there is no rank {} in a group of {}", options.rank, options.world_size);
  } else if (!options.names.empty() && options.names.size() != options.world_size) {
    wrong = fmt::format("{} names are given to a group of {}", options.names.size(),
                        options.world_size);
  } else if (options.max_ctas < Communicator::kLeastCtas ||
             options.max_ctas > Communicator::kMostCtas) {
    wrong = fmt::format("{} CTAs are not between {} and {}", options.max_ctas,
                        Communicator::kLeastCtas, Communicator::kMostCtas);
  }
  if (wrong.empty()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidRequest,
                   "joining an NCCL communicator: " + wrong);
}

}  // namespace

// A call that ends the communicator. Two threads share it, because the waiting one may give up
// first.
struct Communicator::EndCall {
  explicit EndCall(const char* what) : doing(what) {}

  const char* const doing;
  Mutex mutex;
  CondVar changed;
  bool done = false;
  ncclResult_t result = ncclSuccess;
  std::optional<CudaClaim> claim;  // claim of the thread that makes the call
};

Communicator::Communicator(std::shared_ptr<const NcclLibrary> library,
                           std::shared_ptr<CudaDevice> device, CommunicatorOptions options)
    : library_(std::move(library)),
      device_(std::move(device)),
      options_(std::move(options)),
      interrupted_(options_.interrupted) {}

Communicator::~Communicator() {
  const absl::Status aborted = Abort();
  if (!aborted.ok()) Log(LogLevel::kWarn, "{}", MessageOf(aborted));
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Join(
    std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
    CommunicatorOptions options, Deadline deadline) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> made,
                         Make(std::move(library), std::move(device), std::move(options)));
  CKPTD_RETURN_IF_ERROR(made->Enter(deadline));
  return made;
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Make(
    std::shared_ptr<const NcclLibrary> library, std::shared_ptr<CudaDevice> device,
    CommunicatorOptions options) {
  CKPTD_RETURN_IF_ERROR(WithFact(CheckOptions(options), "rank", std::to_string(options.rank)));
  return std::unique_ptr<Communicator>(
      new Communicator(std::move(library), std::move(device), std::move(options)));
}

absl::Status Communicator::Enter(Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(CreateHandle());
  return AwaitReady("joining the NCCL communicator", Others(), deadline, reason::kRankMissing);
}

absl::Status Communicator::CreateHandle() {
  ncclUniqueId id;
  std::memcpy(id.internal, options_.id.data(), options_.id.size());
  ncclConfig_t config = Config(options_);
  const CudaScope scope(*device_);
  const ncclResult_t result =
      library_->CommInitRankConfig(&handle_, static_cast<int>(options_.world_size), id,
                                   static_cast<int>(options_.rank), &config);
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return Fail(library_->Check(result, fmt::format("joining the NCCL communicator as rank {} on {}",
                                                  NameOf(rank()), device_->info().uuid)));
}

std::set<uint32_t> Communicator::Others() const {
  std::set<uint32_t> others;
  for (uint32_t rank = 0; rank < options_.world_size; ++rank) {
    if (rank != options_.rank) others.insert(rank);
  }
  return others;
}

uint32_t Communicator::NameOf(uint32_t rank) const {
  return rank < options_.names.size() ? options_.names[rank] : rank;
}

std::string Communicator::NamesOf(const std::set<uint32_t>& ranks) const {
  std::vector<uint32_t> names;
  for (const uint32_t rank : ranks) names.push_back(NameOf(rank));
  return fmt::format("{}", fmt::join(names, ", "));
}

absl::Status Communicator::Begin() {
  CKPTD_RETURN_IF_ERROR(error_);
  if (handle_ == nullptr || in_group_) {
    return MakeError(
        absl::StatusCode::kInternal, reason::kNcclFailed,
        fmt::format("beginning a group on rank {}: {}", options_.rank,
                    in_group_ ? "one is begun already" : "the communicator is closed"));
  }
  const CudaScope scope(*device_);
  CKPTD_RETURN_IF_ERROR(
      library_->Check(library_->GroupStart(), fmt::format("rank {} begins a group", NameOf(rank()))));
  in_group_ = true;
  group_ranks_.clear();
  return absl::OkStatus();
}

// NCCL would find such a mistake only in a kernel, or not at all.
absl::Status Communicator::CheckPeer(uint32_t peer, uint64_t bytes) const {
  CKPTD_RETURN_IF_ERROR(error_);
  if (in_group_ && peer < options_.world_size && bytes > 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInternal, reason::kNcclFailed,
                   fmt::format("rank {} of {} moves {} bytes with rank {}: {}", options_.rank,
                               options_.world_size, bytes, peer,
                               !in_group_   ? "no group was begun"
                               : bytes == 0 ? "nothing to move"
                                            : "there is no such rank"));
}

absl::Status Communicator::Operate(const char* doing, uint32_t peer, ncclResult_t result) {
  group_ranks_.insert(peer);
  if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
  return Fail(library_->Check(result, fmt::format("rank {} {} rank {}", NameOf(rank()), doing, NameOf(peer))));
}

absl::Status Communicator::Send(CUdeviceptr from, uint64_t bytes, uint32_t peer, CUstream stream) {
  if (absl::Status wrong = CheckPeer(peer, bytes); !wrong.ok()) return Fail(std::move(wrong));
  const CudaScope scope(*device_);
  // Data is sent as bytes, whatever its type.
  return Operate("sends to", peer,
                 library_->Send(reinterpret_cast<const void*>(from), bytes, ncclUint8,
                                static_cast<int>(peer), handle_, stream));
}

absl::Status Communicator::Receive(CUdeviceptr to, uint64_t bytes, uint32_t peer, CUstream stream) {
  if (absl::Status wrong = CheckPeer(peer, bytes); !wrong.ok()) return Fail(std::move(wrong));
  const CudaScope scope(*device_);
  return Operate("receives from", peer,
                 library_->Recv(reinterpret_cast<void*>(to), bytes, ncclUint8,
                                static_cast<int>(peer), handle_, stream));
}

absl::Status Communicator::Broadcast(CUdeviceptr from, CUdeviceptr to, uint64_t bytes,
                                     uint32_t root, CUstream stream) {
  if (absl::Status wrong = CheckPeer(root, bytes); !wrong.ok()) return Fail(std::move(wrong));
  const CudaScope scope(*device_);
  group_ranks_.merge(Others());
  return Operate(
      "takes part in a broadcast from", root,
      library_->Broadcast(reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to), bytes,
                          ncclUint8, static_cast<int>(root), handle_, stream));
}

absl::Status Communicator::End(Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(error_);
  if (!in_group_) {
    return Fail(MakeError(absl::StatusCode::kInternal, reason::kNcclFailed,
                          fmt::format("call a group on rank {}: none was begun", rank())));
  }
  in_group_ = false;
  group_ranks_.erase(options_.rank);
  const std::string doing = "beginning an exchange";
  {
    const CudaScope scope(*device_);
    const ncclResult_t result = library_->GroupEnd();
    if (result != ncclSuccess && result != ncclInProgress) {
      return Fail(library_->Check(result, fmt::format("{} on rank {}", doing, NameOf(rank()))));
    }
  }
  begun_ranks_.insert(group_ranks_.begin(), group_ranks_.end());
  launching_ = true;
  CKPTD_RETURN_IF_ERROR(AwaitReady(doing, group_ranks_, deadline, reason::kDeadline));
  launching_ = false;
  return absl::OkStatus();
}

absl::Status Communicator::Poll(const std::string& doing, bool& in_progress) {
  const CudaScope scope(*device_);
  ncclResult_t state = ncclSuccess;
  ncclResult_t result = library_->CommGetAsyncError(handle_, &state);
  if (result == ncclSuccess) result = state;
  in_progress = result == ncclInProgress;
  if (in_progress) return absl::OkStatus();
  return library_->Check(result,
                         fmt::format("{} on rank {} ({})", doing, NameOf(rank()), device_->info().uuid));
}

absl::Status Communicator::Interrupted() const {
  return interrupted_ ? interrupted_() : absl::OkStatus();
}

absl::Status Communicator::Pause(const std::string& doing, const std::set<uint32_t>& ranks,
                                 Deadline deadline, const char* reason, int attempt) const {
  if (std::chrono::steady_clock::now() >= deadline) {
    return MakeError(
        absl::StatusCode::kDeadlineExceeded, reason,
        fmt::format("{} on rank {}: gave up waiting for rank{} {}; look whether their "
                    "daemons run, and at their logs and GPUs",
                    doing, NameOf(rank()), ranks.size() == 1 ? "" : "s", NamesOf(ranks)));
  }
  std::this_thread::sleep_for(attempt < kShortPolls ? kCudaPoll : kLongPoll);
  return absl::OkStatus();
}

absl::Status Communicator::AwaitReady(const std::string& doing, const std::set<uint32_t>& ranks,
                                      Deadline deadline, const char* reason) {
  for (int attempt = 0;; ++attempt) {
    bool in_progress = false;
    if (absl::Status now = Poll(doing, in_progress); !now.ok()) return Fail(std::move(now));
    if (!in_progress) return absl::OkStatus();
    if (absl::Status told = Interrupted(); !told.ok()) return AbortWith(std::move(told));
    absl::Status end = Pause(doing, ranks, deadline, reason, attempt);
    if (!end.ok()) return Fail(std::move(end));
  }
}

absl::Status Communicator::Wait(CUstream stream, Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(error_);
  const std::string doing = "exchanging bytes";
  for (int attempt = 0;; ++attempt) {
    CUresult stream_state = CUDA_SUCCESS;
    {
      const CudaScope scope(*device_);
      stream_state = device_->driver().StreamQuery(stream);
    }
    // NCCL is asked first: after an error of NCCL the stream may look unfinished or finished.
    bool in_progress = false;
    absl::Status now = handle_ == nullptr ? absl::OkStatus() : Poll(doing, in_progress);
    if (now.ok() && !in_progress && stream_state != CUDA_ERROR_NOT_READY) {
      now = device_->Check(stream_state, doing);
      if (now.ok()) {
        begun_ranks_.clear();
        return now;
      }
    }
    if (!now.ok()) return Fail(std::move(now));
    if (absl::Status told = Interrupted(); !told.ok()) return AbortWith(std::move(told));
    now = Pause(doing, begun_ranks_, deadline, reason::kDeadline, attempt);
    if (!now.ok()) return Fail(std::move(now));
  }
}

absl::Status Communicator::Close(Deadline deadline) {
  CKPTD_RETURN_IF_ERROR(error_);
  if (handle_ == nullptr) return absl::OkStatus();
  const std::string doing = "closing the NCCL communicator";
  {
    const CudaScope scope(*device_);
    const ncclResult_t result = library_->CommFinalize(handle_);
    if (result != ncclSuccess && result != ncclInProgress) {
      return Fail(library_->Check(result, fmt::format("{} on rank {}", doing, NameOf(rank()))));
    }
  }
  CKPTD_RETURN_IF_ERROR(AwaitReady(doing, Others(), deadline, reason::kDeadline));
  absl::Status status = BeginEnd(library_->CommDestroy, "destroying");
  if (status.ok()) status = AwaitEnd();
  return status.ok() ? status : Fail(std::move(status));
}

absl::Status Communicator::Abort() {
  CKPTD_RETURN_IF_ERROR(BeginAbort());
  return AwaitEnd();
}

absl::Status Communicator::BeginAbort() {
  if (handle_ == nullptr) return absl::OkStatus();
  if (std::exchange(in_group_, false)) {
    // Inside a group the abort would be deferred to its end. This invalid send makes NCCL drop
    // the whole group.
    const CudaScope scope(*device_);
    static_cast<void>(library_->Send(nullptr, 1, ncclUint8, -1, handle_, nullptr));
    static_cast<void>(library_->GroupEnd());
  }
  return BeginEnd(library_->CommAbort, "aborting");
}

absl::Status Communicator::Fail(absl::Status status) {
  return AbortWith(WithFact(status, "rank", std::to_string(NameOf(rank()))));
}

absl::Status Communicator::AbortWith(absl::Status status) {
  if (!error_.ok()) return error_;
  error_ = std::move(status);
  const absl::Status begun = BeginAbort();  // its kernels end soon, so nothing waits for that here
  if (!begun.ok()) error_ = WithContext(error_, MessageOf(begun) + "; before");
  return error_;
}

absl::Status Communicator::BeginEnd(decltype(&ncclCommAbort) end, const char* doing) {
  const auto call = std::make_shared<EndCall>(doing);
  const ncclComm_t handle = std::exchange(handle_, nullptr);
  if (launching_) call->claim.emplace(device_);
  try {
    std::thread([call, end, handle, device = device_, library = library_] {
      const CudaScope scope(*device);
      const ncclResult_t result = end(handle);
      call->claim.reset();
      MutexLock lock(call->mutex);
      call->result = result;
      call->done = true;
      call->changed.NotifyAll();
    }).detach();
  } catch (const std::system_error& error) {
    // leaked on purpose: NCCL's threads use that context until the process ends
    new CudaClaim(device_);
    return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed,
                     fmt::format("{} the NCCL communicator on rank {}: no thread could be started "
                                 "({}), so NCCL still holds {}; raise the limit of processes, and "
                                 "start this daemon again",
                                 doing, NameOf(rank()), error.what(), device_->info().uuid));
  }
  end_call_ = call;
  return absl::OkStatus();
}

absl::Status Communicator::AwaitEnd() {
  const std::shared_ptr<EndCall> call = std::exchange(end_call_, nullptr);
  if (call == nullptr) return absl::OkStatus();
  const auto deadline = std::chrono::steady_clock::now() + kEndTimeout;
  MutexLock lock(call->mutex);
  if (!call->changed.WaitUntil(call->mutex, deadline, [&] { return call->done; })) {
    return MakeError(absl::StatusCode::kUnavailable, reason::kNcclFailed,
                     fmt::format("{} the NCCL communicator on rank {}: NCCL has not returned for "
                                 "{} s, and holds {}; start this daemon again",
                                 call->doing, NameOf(rank()), kEndTimeout.count(),
                                 device_->info().uuid));
  }
  return library_->Check(
      call->result,
      fmt::format("{} the NCCL communicator on rank {}", call->doing, NameOf(rank())));
}

}  // namespace ckptd
