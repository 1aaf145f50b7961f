#include "tests/fakes/nccl/comm.h"

#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>
#include <utility>

#include "tests/fakes/cuda/trace.h"
#include "tests/fakes/nccl/warn.h"

namespace ckptd::fake_nccl {
namespace {

std::atomic<std::uint64_t> next_number{1};

struct Registry {
  Mutex mutex;
  pid_t pid = ::getpid();
  std::map<ncclComm_t, CommPtr> comms;
};

std::atomic<Registry*> instance{nullptr};  // null: nothing was ever made

Registry& registry() {
  static Registry* const made = instance = new Registry;
  return *made;
}

// At the process's end: communicators that were neither destroyed nor aborted.
__attribute__((destructor)) void Summarise() {
  if (instance == nullptr || instance.load()->pid != ::getpid()) return;
  MutexLock lock(instance.load()->mutex);
  fake_cuda::TraceEvent("atexit", {{"leaks", instance.load()->comms.size()}});
}

}  // namespace

CommPtr FindComm(ncclComm_t handle) {
  MutexLock lock(registry().mutex);
  const auto found = registry().comms.find(handle);
  if (found != registry().comms.end()) return found->second;
  if (handle != nullptr) fake_cuda::TraceViolation("a communicator is used after its end");
  return nullptr;
}

ncclComm_t AddComm(const CommPtr& comm) {
  const auto handle = reinterpret_cast<ncclComm_t>(comm.get());
  MutexLock lock(registry().mutex);
  registry().comms[handle] = comm;
  return handle;
}

void RemoveComm(ncclComm_t handle) {
  MutexLock lock(registry().mutex);
  registry().comms.erase(handle);
}

Comm::Comm(RankInfo info, CUcontext context, bool blocking)
    : info_(info), context_(context), blocking_(blocking), number_(next_number++) {}

void Comm::Init(const ncclUniqueId& id, const Fault* fault) {
  std::thread([self = shared_from_this(), id, fault] {
    self->JoinOthers(id, fault);
    MutexLock lock(self->mutex_);
    self->joining_ = false;
    self->changed_.NotifyAll();
  }).detach();
}

void Comm::JoinOthers(const ncclUniqueId& id, const Fault* fault) {
  std::vector<UniqueFd> links;
  ncclResult_t result = Join(id, info_, stop_, links);
  if (result == ncclSuccess && !stop_) {
    engine_ = std::make_shared<Engine>(info_.rank, std::move(links), [this](ncclResult_t said) {
      said == ncclSuccess ? Report(said) : Fail(said);
    });
    engine_->Start();
  }
  if (fault != nullptr && fault->hang) return;
  if (result == ncclSuccess && fault != nullptr && fault->late) {
    result = Warn(static_cast<ncclResult_t>(*fault->late), "scripted");
  }
  Report(result);
}

void Comm::InProgress() {
  state_ = ncclInProgress;
  said_ = false;
  result_.reset();
}

ncclResult_t Comm::EnsureReady() {
  MutexLock lock(mutex_);
  if (state_ != ncclInProgress) return state_;
  return Warn(ncclInvalidArgument, "the communicator is used before its last operation is over");
}

ncclResult_t Comm::Poll() {
  std::function<ncclResult_t()> work;
  {
    MutexLock lock(mutex_);
    if (state_ != ncclInProgress) return state_;
    if (!std::exchange(said_, true)) return ncclInProgress;
    work = std::exchange(work_, nullptr);
    if (!work && result_) state_ = *result_;
    if (!work) return state_;
  }
  const ncclResult_t result = work();
  MutexLock lock(mutex_);
  if (state_ == ncclInProgress) state_ = result;
  return state_;
}

void Comm::Postpone(std::function<ncclResult_t()> work) {
  MutexLock lock(mutex_);
  InProgress();
  work_ = std::move(work);
}

void Comm::Fail(ncclResult_t error) {
  MutexLock lock(mutex_);
  if (state_ == ncclSuccess || state_ == ncclInProgress) state_ = error;
  changed_.NotifyAll();
}

void Comm::Report(ncclResult_t result) {
  MutexLock lock(mutex_);
  result_ = result;
  changed_.NotifyAll();
}

ncclResult_t Comm::Finalize() {
  {
    MutexLock lock(mutex_);
    InProgress();
  }
  finalize_called = true;
  engine_->Close();
  return ncclInProgress;
}

ncclResult_t Comm::Wait() {
  MutexLock lock(mutex_);
  changed_.Wait(mutex_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return state_ != ncclInProgress || result_.has_value();
  });
  if (state_ == ncclInProgress) state_ = *result_;
  return state_;
}

void Comm::Abort() {
  stop_ = true;
  {
    MutexLock lock(mutex_);
    changed_.Wait(mutex_, [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !joining_; });
  }
  if (engine_ != nullptr) engine_->Abort();
  MutexLock lock(mutex_);
  work_ = nullptr;
}

}  // namespace ckptd::fake_nccl
