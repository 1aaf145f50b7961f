#include "tests/fakes/cuda/call.h"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace ckptd::fake_cuda {
namespace {

// The fault line that hits this call of `function`, if any; counts the call for all of them.
const Fault* NextFault(std::string_view function) {
  Driver& d = driver();
  MutexLock lock(d.mutex);
  const Fault* hit = nullptr;
  for (std::size_t i = 0; i < d.config.faults.size(); ++i) {
    const Fault& fault = d.config.faults[i];
    if (fault.function != function) continue;
    const std::uint64_t number = ++d.fault_calls[i];
    if (hit == nullptr && (!fault.nth || *fault.nth == number)) hit = &fault;
  }
  return hit;
}

}  // namespace

CUresult Call::Enter(bool needs_init) {
  // cuLaunchHostFunc: "The host function must not make any CUDA API calls."
  if (InHostFunction()) {
    TraceViolation("a host function of a stream calls the API");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const pid_t owner = driver().pid;
  // Reference, section 1.2 row 15: CUDA state does not survive fork. Nor does the lock.
  if (owner != 0 && owner != ::getpid()) return CUDA_ERROR_NOT_INITIALIZED;
  // cuInit: "If cuInit() has not been called, any function from the driver API will return
  // CUDA_ERROR_NOT_INITIALIZED."
  if (needs_init && owner == 0) return CUDA_ERROR_NOT_INITIALIZED;
  fault_ = NextFault(function_);
  if (fault_ == nullptr) return CUDA_SUCCESS;
  std::this_thread::sleep_for(std::chrono::milliseconds(fault_->delay_ms));
  if (fault_->die) ::kill(::getpid(), SIGKILL);
  return CUDA_SUCCESS;
}

CUresult Call::EnterLocked() {
  Driver& d = driver();
  // CUDA_ERROR_ILLEGAL_ADDRESS: "leaves the process in an inconsistent state and any further
  // CUDA work will return the same error".
  after_sticky_ = d.sticky != CUDA_SUCCESS;
  if (after_sticky_) return d.sticky;
  if (fault_ != nullptr && fault_->sticky) return d.Break(static_cast<CUresult>(*fault_->sticky));
  if (fault_ != nullptr && fault_->error) return static_cast<CUresult>(*fault_->error);
  return CUDA_SUCCESS;
}

CUresult Call::Finish(CUresult result) {
  TraceCall(function_, fields_, result, after_sticky_);
  return result;
}

CUresult Call::CurrentContext(Context*& context) {
  // CUDA_ERROR_INVALID_CONTEXT: "most frequently indicates that there is no context bound to the
  // current thread".
  if (ContextStack().empty() || ContextStack().back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  context = ContextStack().back();
  // CUDA_ERROR_CONTEXT_IS_DESTROYED: the current one "has been destroyed [...] or is a primary
  // context which has not yet been initialized".
  return context->active() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

}  // namespace ckptd::fake_cuda
