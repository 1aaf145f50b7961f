// Communicators: their states, and the rules about them.
#ifndef CKPTD_TESTS_FAKES_NCCL_COMM_H_
#define CKPTD_TESTS_FAKES_NCCL_COMM_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/mutex.h"
#include "tests/fakes/nccl/bootstrap.h"
#include "tests/fakes/nccl/engine.h"

namespace ckptd::fake_nccl {

// A state that is "in progress" is said at least once, whatever has happened meanwhile: who takes
// the first answer for success is found. Thread-safe but for finalize_called and last_launch, which
// belong to the one thread that may use a communicator.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  Comm(RankInfo info, CUcontext context, bool blocking);

  int rank() const { return info_.rank; }
  int world() const { return info_.world; }
  std::uint64_t number() const { return number_; }  // in traces
  bool blocking() const { return blocking_; }
  CUcontext context() const { return context_; }
  Engine* engine() const { return engine_.get(); }

  void Init(const ncclUniqueId& id, const Fault* fault);
  // ncclCommEnsureReady (init.cc): in progress is an invalid argument, an error stays.
  ncclResult_t EnsureReady();
  // ncclCommGetAsyncError.
  ncclResult_t Poll();
  // In progress from now on; `work` is done by the poll after the next.
  void Postpone(std::function<ncclResult_t()> work);
  // Becomes `error`, unless it is another one already.
  void Fail(ncclResult_t error);
  ncclResult_t Finalize();
  // Until it is no longer in progress.
  ncclResult_t Wait();
  // Nothing of it moves, or waits, when this returns.
  void Abort();

  bool finalize_called = false;
  CUevent last_launch = nullptr;

 private:
  void JoinOthers(const ncclUniqueId& id, const Fault* fault);
  void Report(ncclResult_t result);
  void InProgress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RankInfo info_;
  const CUcontext context_;
  const bool blocking_;
  const std::uint64_t number_;
  Stop stop_{false};
  std::shared_ptr<Engine> engine_;

  Mutex mutex_;
  CondVar changed_;
  ncclResult_t state_ ABSL_GUARDED_BY(mutex_) = ncclInProgress;
  bool joining_ ABSL_GUARDED_BY(mutex_) = true;
  bool said_ ABSL_GUARDED_BY(mutex_) = false;  // that it is in progress
  std::optional<ncclResult_t> result_ ABSL_GUARDED_BY(mutex_);
  std::function<ncclResult_t()> work_ ABSL_GUARDED_BY(mutex_);
};
using CommPtr = std::shared_ptr<Comm>;

// The communicator of a handle; null: none, or one that was destroyed.
CommPtr FindComm(ncclComm_t handle);
ncclComm_t AddComm(const CommPtr& comm);
void RemoveComm(ncclComm_t handle);

}  // namespace ckptd::fake_nccl

#endif  // CKPTD_TESTS_FAKES_NCCL_COMM_H_
