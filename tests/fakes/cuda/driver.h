// The state of the fake driver in this process.
#ifndef CKPTD_TESTS_FAKES_CUDA_DRIVER_H_
#define CKPTD_TESTS_FAKES_CUDA_DRIVER_H_

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/mutex.h"
#include "tests/fakes/cuda/config.h"
#include "tests/fakes/cuda/driver_api.h"
#include "tests/fakes/cuda/space.h"
#include "tests/fakes/cuda/store.h"
#include "tests/fakes/cuda/streams.h"

namespace ckptd::fake_cuda {

// The primary context of a visible device; its address is the CUcontext.
struct Context {
  int device = 0;
  unsigned retained = 0;
  unsigned flags = 0;
  StreamPtr null_stream;  // null while the context is not active
  std::set<int> peers;    // devices whose memory cuCtxEnablePeerAccess opened
  bool active() const { return null_stream != nullptr; }
};

struct Device {
  std::size_t gpu = 0;  // of the configuration: CUDA_VISIBLE_DEVICES selects and orders
  Context context;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  Point recorded;  // no stream: never recorded
  // When the recorded point was reached; shared with the queued piece.
  std::shared_ptr<Clock::time_point> reached;
};

struct Module {
  const Context* context = nullptr;
  std::string ptx;  // empty: binary code
};

struct Function {
  std::string name;
  void (*twin)(const void* params, unsigned grid, unsigned block) = nullptr;
  std::size_t param_bytes = 0;  // 0: unknown
};

// One per process, never destroyed: threads may still be in it at exit.
// Everything is guarded by `mutex`; Call (call.h) holds it for the entry points.
struct Driver {
  Driver();

  Mutex mutex;
  Config config;
  std::string config_error;   // not empty: cuInit refuses
  std::atomic<pid_t> pid{0};  // who called cuInit; 0: nobody. Read without the lock.
  CUresult sticky = CUDA_SUCCESS;
  std::vector<Device> devices;
  std::vector<std::uint64_t> fault_calls;  // per line of config.faults
  Store store;
  Space space;
  Streams streams;
  std::map<CUmemGenericAllocationHandle, MemoryPtr> handles;  // with handle_refs > 0
  std::map<CUstream, StreamPtr> stream_handles;
  std::map<CUevent, std::unique_ptr<Event>> events;
  std::map<CUmodule, std::unique_ptr<Module>> modules;
  std::map<CUfunction, std::unique_ptr<Function>> functions;

  // CUDA_ERROR_INVALID_DEVICE outside of the visible ones.
  Device* Find(CUdevice device);
  Context* Find(CUcontext context);
  // The visible device of a GPU of the configuration; -1: not visible here.
  int DeviceOf(std::size_t gpu) const;
  // The stream behind a handle; null: no such one. `context` is the current one.
  StreamPtr Find(CUstream stream, const Context& context) const;
  // From now on every call fails with it (the context of the real one is lost).
  CUresult Break(CUresult error);
  // The end of a primary context: its memory, streams, events and modules go.
  void Destroy(Context& context);
};

Driver& driver();
int AnswerAttribute(CUdevice_attribute attribute, const Device& device);

// Contexts that a thread has made current, one on the other. It has no destructor: destructors
// of static objects still call the driver when those of the main thread's own have run.
class ThreadContexts {
 public:
  bool empty() const { return size_ == 0; }
  Context* back() const { return at_[size_ - 1]; }
  void push_back(Context* context) {
    at_.at(size_) = context;
    ++size_;
  }
  void pop_back() { --size_; }

 private:
  std::array<Context*, 256> at_ = {};
  size_t size_ = 0;
};
static_assert(std::is_trivially_destructible_v<ThreadContexts>);

// Those of the calling thread.
ThreadContexts& ContextStack();
// True in a host function of a stream, which may not call the API.
bool& InHostFunction();

}  // namespace ckptd::fake_cuda

#endif  // CKPTD_TESTS_FAKES_CUDA_DRIVER_H_
