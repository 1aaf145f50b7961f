// What every entry point does around its own work: rules that hold for all
// calls, scripted faults, the lock, and a line in the trace.
#ifndef CKPTD_TESTS_FAKES_CUDA_CALL_H_
#define CKPTD_TESTS_FAKES_CUDA_CALL_H_

#include <string_view>
#include <utility>

#include "tests/fakes/cuda/driver.h"
#include "tests/fakes/cuda/trace.h"

namespace ckptd::fake_cuda {

// CUresult CUDAAPI cuX(...) { return Call("cuX", {{"bytes", n}}).Run([&](Call& call) { ... }); }
// A body runs with the driver's lock.
class Call {
 public:
  Call(const char* function, Fields fields) : function_(function), fields_(std::move(fields)) {}

  // Refuses unless cuInit was called in this process.
  template <typename Body>
  CUresult Run(Body body) {
    return Finish(Guarded(/*needs_init=*/true, [&] { return body(*this); }));
  }
  // May be called before cuInit.
  template <typename Body>
  CUresult RunAnyTime(Body body) {
    return Finish(Guarded(/*needs_init=*/false, [&] { return body(*this); }));
  }
  // Refuses unless the calling thread has a current context, too: its work is given that.
  template <typename Body>
  CUresult RunInContext(Body body) {
    return Finish(Guarded(/*needs_init=*/true, [&] {
      Context* context = nullptr;
      const CUresult current = CurrentContext(context);
      return current != CUDA_SUCCESS ? current : body(*this, *context);
    }));
  }

  // Adds to the trace line: handles and addresses that the call gave out.
  template <typename T>
  void Note(std::string_view key, T value) {
    fields_.emplace_back(key, value);
  }
  // The fault that hits this call; null: none.
  const Fault* fault() const { return fault_; }

 private:
  template <typename Body>
  CUresult Guarded(bool needs_init, Body body) {
    CUresult result = Enter(needs_init);
    if (result != CUDA_SUCCESS) return result;
    MutexLock lock(driver().mutex);
    result = EnterLocked();
    return result != CUDA_SUCCESS ? result : body();
  }
  // Rules that need no lock, and delays.
  CUresult Enter(bool needs_init);
  // Faults and the error of the process.
  CUresult EnterLocked();
  CUresult Finish(CUresult result);
  static CUresult CurrentContext(Context*& context);

  const char* function_;
  Fields fields_;
  const Fault* fault_ = nullptr;
  bool after_sticky_ = false;
};

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_CALL_H_
